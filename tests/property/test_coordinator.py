"""The classic group coordinator against a naive model, and storms of clients (SPEC L2)."""

from __future__ import annotations

import random
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from nexo.brokers.stream.groups.kafka.coordinator import Answers, Coordinator
from nexo.brokers.stream.groups.kafka.model import (
    Caller,
    GroupError,
    Join,
    Joined,
    JoinRefused,
    RebalanceState,
    Synced,
)

Told = dict[int, Any]
"""What each ticket is answered with: an error, a generation, or an assignment."""


class Model:
    """The rules as one would tell them: no time, no static members, one assignor."""

    def __init__(self) -> None:
        self.members: list[str] = []
        self.joining: dict[str, int] = {}
        self.syncing: dict[str, int] = {}
        self.shares: dict[str, bytes] = {}
        self.leader = ""
        self.generation = 0
        self.state = RebalanceState.EMPTY

    def join(self, ticket: int, member: str) -> Told:
        new = member not in self.members
        if not new and (
            self.state is RebalanceState.COMPLETING
            or (self.state is RebalanceState.STABLE and member != self.leader)
        ):
            return {ticket: self.generation}
        told = self._superseded(member)
        if new:
            self.members.append(member)
        self.joining[member] = ticket
        return told | self._rebalance()

    def sync(self, ticket: int, member: str, generation: int, shares: dict[str, bytes]) -> Told:
        error = self.heartbeat(member, generation)
        if error is not None:
            return {ticket: error}
        told = self._superseded(member)
        if self.state is RebalanceState.STABLE:
            return told | {ticket: self.shares.get(member, b"")}
        self.syncing[member] = ticket
        if member != self.leader:
            return told
        self.state, self.shares = RebalanceState.STABLE, dict(shares)
        told |= {at: shares.get(who, b"") for who, at in self.syncing.items()}
        self.syncing.clear()
        return told

    def heartbeat(self, member: str, generation: int) -> GroupError | None:
        if member not in self.members:
            return GroupError.UNKNOWN_MEMBER_ID
        if generation != self.generation:
            return GroupError.ILLEGAL_GENERATION
        return GroupError.REBALANCE_IN_PROGRESS if self.state is RebalanceState.PREPARING else None

    def leave(self, member: str) -> Told:
        told: Told = dict.fromkeys(self._superseded(member), GroupError.UNKNOWN_MEMBER_ID)
        self.members.remove(member)
        self.leader = "" if self.leader == member else self.leader
        return told | self._rebalance()

    def _superseded(self, member: str) -> Told:
        tickets = (self.joining.pop(member, None), self.syncing.pop(member, None))
        return {at: GroupError.REBALANCE_IN_PROGRESS for at in tickets if at is not None}

    def _rebalance(self) -> Told:
        told: Told = {}
        if self.state is not RebalanceState.PREPARING:
            self.state = RebalanceState.PREPARING
            told = dict.fromkeys(self.syncing.values(), GroupError.REBALANCE_IN_PROGRESS)
            self.syncing.clear()
        if set(self.joining) != set(self.members):
            return told
        self.generation += 1
        if not self.members:
            self.state = RebalanceState.EMPTY
            return told
        if self.leader not in self.members:
            self.leader = self.members[0]
        self.state, self.shares = RebalanceState.COMPLETING, {}
        told |= dict.fromkeys(self.joining.values(), self.generation)
        self.joining.clear()
        return told


def told(answers: Answers) -> Told:
    """Answers in the model's words."""
    found: Told = {}
    for answer in answers:
        assert isinstance(answer.ticket, int)
        assert answer.ticket not in found
        match answer.reply:
            case Joined(generation):
                found[answer.ticket] = generation
            case Synced(_, assignment):
                found[answer.ticket] = assignment
            case JoinRefused(error):
                found[answer.ticket] = error
    return found


def ask(member_id: str = "") -> Join:
    return Join("consumer", (("range", b"topics"),), member_id, asks_for_id=False)


NAMES = st.sampled_from("abcd")


class Compared(RuleBasedStateMachine):
    """Every call has the same outcome in both."""

    def __init__(self) -> None:
        super().__init__()
        self.engine = Coordinator()
        self.model = Model()
        self.ticket = 0

    def _next(self) -> int:
        self.ticket += 1
        return self.ticket

    def _same(self, answers: Answers, expected: Told) -> None:
        assert told(answers) == expected
        for answer in answers:
            if isinstance(answer.reply, Joined):
                self._check_joined(answer.reply)
        assert list(self.engine.members) == self.model.members
        assert (self.engine.state, self.engine.generation) == (
            self.model.state,
            self.model.generation,
        )

    def _check_joined(self, reply: Joined) -> None:
        assert reply.leader == self.model.leader
        rows = [row[0] for row in reply.members]
        assert rows == (self.model.members if reply.member_id == reply.leader else [])

    @rule(member=NAMES)
    def join(self, member: str) -> None:
        ticket = self._next()
        known = member in self.model.members
        answers = self.engine.join(ticket, ask(member if known else ""), member, 0)
        self._same(answers, self.model.join(ticket, member))

    @rule(member=NAMES, behind=st.integers(0, 1), number=st.integers(0, 9))
    def sync(self, member: str, behind: int, number: int) -> None:
        ticket, generation = self._next(), self.engine.generation - behind
        shares = {each: f"{number} {each}".encode() for each in "abcd"}
        answers = self.engine.sync(ticket, Caller(member, generation), shares, 0)
        self._same(answers, self.model.sync(ticket, member, generation, shares))

    @rule(member=NAMES, behind=st.integers(0, 1))
    def heartbeat(self, member: str, behind: int) -> None:
        generation = self.engine.generation - behind
        error = self.engine.heartbeat(Caller(member, generation), 0)
        assert error == self.model.heartbeat(member, generation)

    @precondition(lambda self: self.model.members)
    @rule(number=st.integers(0, 3))
    def leave(self, number: int) -> None:
        member = self.model.members[number % len(self.model.members)]
        results, answers = self.engine.leave([(member, None)], 0)
        assert results == [None]
        self._same(answers, self.model.leave(member))


TestCompared = Compared.TestCase


class Client:
    """A consumer that does what replies tell it, as Kafka's clients do."""

    def __init__(self, name: str, instance: str | None) -> None:
        self.name = name
        self.instance = instance
        self.id = ""
        self.generation = -1
        self.share: bytes | None = None
        self.waits = False

    def told(self, reply: Any) -> None:
        self.waits = False
        match reply:
            case JoinRefused(GroupError.MEMBER_ID_REQUIRED, given_id):
                self.id = given_id
            case JoinRefused(GroupError.UNKNOWN_MEMBER_ID | GroupError.FENCED_INSTANCE_ID):
                self.id, self.generation, self.share = "", -1, None
            case JoinRefused():
                self.generation, self.share = -1, None
            case Joined(generation, member_id=member_id):
                self.id, self.generation, self.share = member_id, generation, None
            case Synced(_, assignment):
                self.share = assignment


class World:
    """Clients, a coordinator, and time."""

    def __init__(self, seed: int) -> None:
        self.engine = Coordinator()
        self.random = random.Random(seed)
        self.now = 0
        self.count = 0
        self.clients: list[Client] = []
        self.waiting: dict[int, Client] = {}
        self.leaders: dict[int, str] = {}

    def deliver(self, answers: Answers) -> None:
        for answer in answers:
            assert isinstance(answer.ticket, int)
            client = self.waiting.pop(answer.ticket)
            if isinstance(answer.reply, Joined) and answer.reply.members:
                known = self.leaders.setdefault(answer.reply.generation, answer.reply.leader)
                assert known == answer.reply.leader or answer.reply.skip_assignment
            client.told(answer.reply)

    def ticket(self, client: Client) -> int:
        self.count += 1
        self.waiting[self.count] = client
        client.waits = True
        return self.count

    def step(self, client: Client) -> None:
        """What the client does next."""
        if client.waits:
            return
        if client.generation < 0:
            self.count += 1
            wanted = Join(
                "consumer", (("range", b"t"),), client.id, client.instance,
                session_timeout_ms=6_000, rebalance_timeout_ms=20_000,
            )  # fmt: skip
            ticket = self.ticket(client)
            self.deliver(self.engine.join(ticket, wanted, f"{client.name}-{ticket}", self.now))
        elif client.share is None:
            shares = {each: each.encode() for each in self.engine.members}
            ticket = self.ticket(client)
            caller = Caller(client.id, client.generation, client.instance)
            self.deliver(self.engine.sync(ticket, caller, shares, self.now))
        else:
            caller = Caller(client.id, client.generation, client.instance)
            error = self.engine.heartbeat(caller, self.now)
            if error is not None:
                client.told(JoinRefused(error))

    def tick(self, ms: int) -> None:
        self.now += ms
        while (due := self.engine.next_deadline()) is not None and due <= self.now:
            self.deliver(self.engine.expire(self.now))

    def disturb(self) -> None:
        choice = self.random.random()
        if choice < 0.4 or not self.clients:
            name = f"c{self.count}"
            instance = f"i{self.random.randrange(3)}" if self.random.random() < 0.3 else None
            if instance is None or all(each.instance != instance for each in self.clients):
                self.clients.append(Client(name, instance))
            return
        gone = self.clients.pop(self.random.randrange(len(self.clients)))
        for ticket in [at for at, who in self.waiting.items() if who is gone]:
            self.waiting[ticket] = Client("gone", None)  # nobody reads the reply
        if choice < 0.7 and gone.id:
            leaving = "" if gone.instance is not None else gone.id
            _, answers = self.engine.leave([(leaving, gone.instance)], self.now)
            self.deliver(answers)


@given(st.integers(0, 1 << 30))
def test_after_any_storm_all_live_clients_share_one_generation(seed: int) -> None:
    world = World(seed)
    for _ in range(60):
        if world.random.random() < 0.3:
            world.disturb()
        for client in world.random.sample(world.clients, len(world.clients)):
            if world.random.random() < 0.7:
                world.step(client)
        world.tick(world.random.choice([10, 500, 3_000]))
    for _ in range(60):
        for client in world.clients:
            world.step(client)
        world.tick(1_000)
    engine = world.engine
    assert {client.id for client in world.clients} == set(engine.members)
    assert {client.generation for client in world.clients} <= {engine.generation}
    if world.clients:
        assert engine.state is RebalanceState.STABLE
        assert all(client.share is not None for client in world.clients)
    else:
        assert engine.state is RebalanceState.EMPTY
    assert not world.waiting
