"""Groups of KIP-848 as their members see them: whatever happens, no partition has two owners."""

from __future__ import annotations

import random

import pytest

from nexo.brokers.stream.groups.kafka.model import Caller, GroupError
from nexo.errors import NexoError
from nexo.services.stream.groups.kafka_consumers import (
    JOIN,
    LEAVE,
    LEAVE_FOR_A_WHILE,
    Beat,
    BeatReply,
)
from tests.unit.brokers.stream.desk import Desk

GROUP, PARTITIONS = "g", 6
TOPICS = ("a", "b")
ALL = {(topic, number) for topic in TOPICS for number in range(PARTITIONS)}


class Client:
    """Does what answers tell it, as Kafka's clients do: gives up first, then takes."""

    def __init__(self, desk: Desk, name: str, instance: str | None = None) -> None:
        self._desk = desk
        self._peer = desk.client()
        self.name = name
        self.instance = instance
        self.epoch = JOIN
        self.topics: tuple[str, ...] | None = TOPICS
        self.held: set[tuple[str, int]] = set()
        self._target: set[tuple[str, int]] = set()
        self._says = False
        self.error: GroupError | None = None

    def beat(self, epoch: int | None = None) -> None:
        beat = Beat(
            self.name, self.epoch if epoch is None else epoch, self.instance, self.topics,
            set(self.held) if self._says else None,
        )  # fmt: skip
        self._desk.service.consumers.heartbeat(self._peer, GROUP, beat, self._told)
        self._desk.runtime.end_turn()

    def _told(self, told: BeatReply | GroupError | NexoError) -> None:
        assert not isinstance(told, NexoError)
        if isinstance(told, GroupError):
            self.error, self.epoch, self.topics = told, JOIN, TOPICS
            self._target, self.held = set(), set()
            return
        self.error, self.epoch, self.topics, self._says = None, told.epoch, None, False
        if told.owned is not None:
            self._target = set(told.owned)
        if self.held <= self._target:
            self.held = set(self._target)

    def give_up(self) -> None:
        """Stop to work on what it shall not hold: until then it holds that."""
        self._says = self._says or not self.held <= self._target
        self.held = set(self._target)

    def leave(self, epoch: int = LEAVE) -> None:
        self.beat(epoch)
        self._target, self.held = set(), set()
        self.epoch, self.topics = JOIN, TOPICS


def new_desk() -> Desk:
    desk = Desk()
    for topic in TOPICS:
        desk.client().make(topic, partitions=PARTITIONS)
    return desk


def settle(*clients: Client) -> None:
    for _ in range(8):
        for client in clients:
            client.beat()
            client.give_up()


def pass_time(desk: Desk, seconds: int) -> None:
    desk.runtime.time.now += seconds * 1_000
    desk.service.tick(desk.runtime.time.now)
    desk.runtime.end_turn()


@pytest.mark.parametrize("seed", range(40))
def test_no_partition_is_ever_held_by_two(seed: int) -> None:
    desk, chance = new_desk(), random.Random(seed)
    clients = [Client(desk, f"m{number}") for number in range(4)]
    for step in range(80):
        client = chance.choice(clients)
        match chance.randrange(12):
            case 0:
                client.leave()
            case 1:  # it dies and comes back as another
                dead = clients.index(client)
                clients[dead] = Client(desk, f"m{step}x")
            case 2 if client.epoch > 0:
                client.topics = chance.choice([("a",), ("b",), TOPICS])
                client.beat()
            case 3 | 4:
                client.give_up()
            case _:
                client.beat()
        held = [at for one in clients for at in one.held]
        assert len(held) == len(set(held))
    pass_time(desk, 46)
    for client in clients:
        client.topics = TOPICS
    settle(*clients)
    assert set().union(*(client.held for client in clients)) == ALL


def test_a_member_keeps_its_epoch_until_it_has_given_up() -> None:
    desk = new_desk()
    first, second = Client(desk, "one"), Client(desk, "two")
    first.beat()
    second.beat()
    assert (first.held, second.held) == (ALL, set())
    before = first.epoch
    first.beat()
    second.beat()
    assert (first.epoch, first.held) == (before, ALL)
    assert second.held == set(), "the first has not given anything up"
    first.give_up()
    assert len(first.held) == len(ALL) // 2
    second.beat()
    assert second.held == set(), "the first has not said yet that it gave anything up"
    settle(first, second)
    assert first.epoch == second.epoch > before
    assert first.held | second.held == ALL


def test_a_late_member_is_fenced_and_an_unknown_one_is_told() -> None:
    desk = new_desk()
    first, second = Client(desk, "one"), Client(desk, "two")
    settle(first, second)
    first.beat(first.epoch - 1)
    assert first.error is GroupError.FENCED_MEMBER_EPOCH
    pass_time(desk, 46)
    second.beat()
    assert second.error is GroupError.UNKNOWN_MEMBER_ID


def test_a_static_member_that_is_away_keeps_its_place_for_a_while() -> None:
    desk = new_desk()
    first, other = Client(desk, "one", "fixed"), Client(desk, "two")
    settle(first, other)
    had = set(first.held)
    twin = Client(desk, "twin", "fixed")
    twin.beat()
    assert twin.error is GroupError.UNRELEASED_INSTANCE_ID
    first.leave(LEAVE_FOR_A_WHILE)
    settle(other)
    assert not other.held & had
    twin.beat()
    assert twin.held == had
    twin.leave(LEAVE_FOR_A_WHILE)
    pass_time(desk, 30)
    other.beat()
    pass_time(desk, 30)
    settle(other)
    assert other.held == ALL


def test_offsets_are_taken_of_members_in_their_epoch_only() -> None:
    desk = new_desk()
    client = Client(desk, "one")
    client.beat()
    peer, check = desk.client(), desk.service.consumers.check_commit
    assert check(peer, GROUP, Caller("one", client.epoch)) is None
    assert check(peer, GROUP, Caller("one", client.epoch + 1)) is GroupError.STALE_MEMBER_EPOCH
    assert check(peer, GROUP, Caller("two", client.epoch)) is GroupError.UNKNOWN_MEMBER_ID
    assert check(peer, GROUP, Caller("", -1)) is GroupError.UNKNOWN_MEMBER_ID
    client.leave()
    assert check(peer, GROUP, Caller("", -1)) is None
