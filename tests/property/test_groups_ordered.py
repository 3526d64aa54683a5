"""Ordered groups through storms of joins, leaves and silences (SPEC G5-G6).

The clients of this model keep their own idea of what they own, from replies alone, and
confirm late or never: no two live ones may ever believe they own the same partition.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from nexo.brokers.stream.groups.ordered import OrderedGroup
from nexo.brokers.stream.groups.ordered_state import (
    OffsetCommit,
    OrderedRecord,
    OrderedSnapshot,
)
from nexo.errors import Fenced, NotMember
from nexo.model.stream import Assigned, StreamPartition
from nexo.options.stream import OrderedOptions, Strategy

TOPICS = {"orders": 5, "users": 3}
SESSION_MS = 2_500
REBALANCE_MS = 1_000

_RECORD = msgspec.msgpack.Decoder(OrderedRecord)
_SNAPSHOT = msgspec.msgpack.Decoder(OrderedSnapshot)


@dataclass
class Client:
    """A member as it sees itself."""

    name: str
    generation: int = 0
    working_on: set[StreamPartition] = field(default_factory=set)
    told_to_drop: set[StreamPartition] = field(default_factory=set)

    def hear(self, assignment: Assigned) -> None:
        assert assignment.generation >= self.generation
        self.generation = assignment.generation
        self.working_on = set(assignment.owned) | set(assignment.revoked)
        self.told_to_drop = set(assignment.revoked)
        assert not set(assignment.owned) & set(assignment.revoked)
        assert not set(assignment.owned) & set(assignment.awaited)

    def drop_revoked(self) -> None:
        self.working_on -= self.told_to_drop
        self.told_to_drop = set()


class OrderedGroupMachine(RuleBasedStateMachine):
    strategy: Strategy = "range"
    clients = Bundle("clients")

    def __init__(self) -> None:
        super().__init__()
        options = OrderedOptions(
            strategy=self.strategy,
            session_timeout_ms=SESSION_MS,
            rebalance_timeout_ms=REBALANCE_MS,
        )
        self.group = OrderedGroup(options)
        self.replica = OrderedGroup(options)
        self.now_ms = 1_000
        self.living: dict[str, Client] = {}
        self.committed: dict[StreamPartition, int] = {}
        self.names = 0

    @rule(target=clients, topics=st.sampled_from([("orders",), ("users",), ("orders", "users")]))
    def join(self, topics: tuple[str, ...]) -> Client:
        self.names += 1
        client = Client(f"m{self.names}")
        before = self.group.generation
        client.hear(self.group.join(client.name, {t: TOPICS[t] for t in topics}, self.now_ms))
        assert client.generation > before
        self.living[client.name] = client
        return client

    @rule(client=consumes(clients))
    def leave(self, client: Client) -> None:
        lived = self.living.pop(client.name, None) is not None
        assert self.group.leave(client.name, self.now_ms) is lived

    @rule(client=clients, confirm=st.booleans())
    def heartbeat(self, client: Client, confirm: bool) -> None:
        if client.name not in self.living:
            with pytest.raises(NotMember):
                self.group.heartbeat(client.name, client.generation, self.now_ms)
            return
        if confirm:
            client.drop_revoked()
        generation = client.generation if confirm or not client.told_to_drop else 0
        client.hear(self.group.heartbeat(client.name, generation, self.now_ms))

    @rule(client=clients, data=st.data(), offset=st.integers(0, 50))
    def commit(self, client: Client, data: st.DataObject, offset: int) -> None:
        topic = data.draw(st.sampled_from(sorted(TOPICS)))
        at = topic, data.draw(st.integers(0, TOPICS[topic] - 1))
        allowed = (
            client.name in self.living
            and client.generation == self.group.generation
            and self.group.owners.get(at) == client.name
        )
        offsets = [OffsetCommit(*at, offset)]
        if not allowed:
            with pytest.raises(Fenced):
                self.group.commit(client.name, client.generation, offsets, self.now_ms)
            return
        self.group.commit(client.name, client.generation, offsets, self.now_ms)
        self.committed[at] = max(offset, self.committed.get(at, 0))

    @rule(passed_ms=st.integers(1, REBALANCE_MS))
    def wait(self, passed_ms: int) -> None:
        self.now_ms += passed_ms
        deadline = self.group.next_deadline()
        before = self.group.generation
        out = self.group.expire(self.now_ms)
        assert bool(out) is (deadline is not None and deadline <= self.now_ms)
        assert (self.group.generation > before) is bool(out)
        for name in out:
            del self.living[name]

    @rule()
    def settle(self) -> None:
        """When all live members confirm, every subscribed partition is owned."""
        for _ in range(2):
            for client in self.living.values():
                client.hear(self.group.heartbeat(client.name, client.generation, self.now_ms))
                client.drop_revoked()
                client.hear(self.group.heartbeat(client.name, client.generation, self.now_ms))
        assert self.group.stable

    @rule()
    def crash(self) -> None:
        saved = msgspec.msgpack.encode(self.group.snapshot())
        self.group = OrderedGroup.restore(_SNAPSHOT.decode(saved))
        self.living = {}

    @invariant()
    def no_partition_is_worked_on_by_two_live_members(self) -> None:
        believed = [at for client in self.living.values() for at in client.working_on]
        assert len(believed) == len(set(believed))
        for client in self.living.values():
            for at in client.working_on:
                assert self.group.owners.get(at) == client.name

    @invariant()
    def the_first_member_leads(self) -> None:
        assert self.group.leader == next(iter(self.living), "")
        assert self.group.members == list(self.living)

    @invariant()
    def committed_offsets_never_move_back(self) -> None:
        assert {at: c.offset for at, c in self.group.offsets.items()} == self.committed

    @invariant()
    def the_journal_alone_gives_the_same_state(self) -> None:
        for record in self.group.drain():
            self.replica.apply(_RECORD.decode(msgspec.msgpack.encode(record)))
        assert self.replica.snapshot() == self.group.snapshot()


class RoundRobinMachine(OrderedGroupMachine):
    strategy: Strategy = "roundRobin"


TestOrderedByRange = OrderedGroupMachine.TestCase
TestOrderedRoundRobin = RoundRobinMachine.TestCase
TestOrderedByRange.settings = settings(max_examples=100, stateful_step_count=50, deadline=None)
TestOrderedRoundRobin.settings = settings(max_examples=100, stateful_step_count=50, deadline=None)
