"""Servers, a store that misbehaves, pauses and crashes by chance: nothing confirmed is lost.

Each seed is one schedule over the real shipping and claiming code. A server that is paused goes
on later as if nothing had happened, which is what a lock with a clock would not survive.
"""

from __future__ import annotations

import os
from contextlib import suppress
from itertools import count
from random import Random

import pytest

from nexo.errors import Corrupt
from nexo.replication.log_objects import Mark
from nexo.replication.objects import AlreadyThere, StoreFailed, log_key
from nexo.replication.shipping import LeadLost, Put, Shipper
from nexo.storage.disk.recording import FileWritten
from tests.memory_objects import MemoryObjects
from tests.unit.replication.misbehaving import MisbehavingObjects

SEEDS = int(os.environ.get("SOAK_SCHEDULES") or (20_000 if os.environ.get("SOAK") else 1_500))
STEPS = 120


class World:
    """What all servers share, and what clients were told."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.store = MisbehavingObjects(MemoryObjects(), self.random)
        self.confirmed: list[str] = []
        self.texts = (str(number) for number in count())
        self.names = (f"server-{number}" for number in count())


class Server:
    """Follows, claims, leads; loses everything in a crash."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.mark = Mark()
        self.applied: list[str] = []
        self._shipper: Shipper | None = None
        self._in_flight: Put | None = None
        self._open: list[tuple[int, str]] = []

    def step(self) -> None:
        if self._shipper is None:
            self._follow()
            return
        try:
            self._lead(self._shipper)
        except LeadLost:
            self._shipper = self._in_flight = None
            self._open.clear()
            self.mark = Mark()
            self.applied = []

    def _follow(self) -> None:
        data = self._world.store.get(log_key(self.mark.number))
        if data is not None:
            group, self.mark = self.mark.take(data)
            for operation in group.operations:
                assert isinstance(operation, FileWritten)
                self.applied.append(operation.data.decode())
        elif self._world.random.random() < 0.2:
            self._shipper = Shipper(next(self._world.names), self.mark)

    def _lead(self, shipper: Shipper) -> None:
        if shipper.leads and self._world.random.random() < 0.6:
            text = next(self._world.texts)
            ticket = shipper.gather([FileWritten("f", 0, text.encode())])
            self._open.append((ticket, text))
        self._in_flight = self._in_flight or shipper.next_put(0)
        if self._in_flight is not None:
            self._put(shipper, self._in_flight)
        while self._open and self._open[0][0] <= shipper.shipped:
            self._world.confirmed.append(self._open.pop(0)[1])

    def _put(self, shipper: Shipper, put: Put) -> None:
        try:
            self._world.store.create(put.key, put.data)
        except AlreadyThere:
            found = self._world.store.get(put.key)
            assert found is not None
            shipper.refused(found)
        else:
            shipper.created()
        self._in_flight = None


def run(seed: int, server_type: type[Server] = Server) -> tuple[int, int]:
    """One schedule; returns how many were confirmed and in how many epochs."""
    world = World(seed)
    servers = [server_type(world) for _ in range(3)]
    awake = set(range(3))
    for _ in range(STEPS):
        world.store.pass_time()
        at = world.random.randrange(3)
        fate = world.random.random()
        if fate < 0.03:
            awake ^= {at}
        elif fate < 0.04:
            servers[at] = server_type(world)
        elif at in awake:
            try:
                servers[at].step()
            except StoreFailed:
                continue
    return check(world)


def check(world: World) -> tuple[int, int]:
    mark, found = Mark(), []
    objects = world.store.inner
    while (data := objects.get(log_key(mark.number))) is not None:
        group, mark = mark.take(data)
        found += [operation.data.decode() for operation in group.operations]  # type: ignore[union-attr]
    assert len(objects.objects) == mark.number, "a number was left out"
    assert len(found) == len(set(found)), "something is there twice"
    assert set(world.confirmed) <= set(found), "something confirmed is lost"
    assert len(world.confirmed) == len(set(world.confirmed))
    return len(world.confirmed), mark.epoch


def test_no_schedule_loses_or_repeats_what_was_confirmed() -> None:
    confirmed = epochs = 0
    for seed in range(SEEDS):
        try:
            result = run(seed)
        except AssertionError as error:
            pytest.fail(f"seed {seed}: {error}")
        confirmed, epochs = confirmed + result[0], epochs + result[1]
    assert confirmed > 10 * SEEDS, "little work was done"
    assert epochs > SEEDS, "hardly any takeovers"


class Trusting(Server):
    """Takes an unclear answer for success."""

    def _put(self, shipper: Shipper, put: Put) -> None:
        try:
            super()._put(shipper, put)
        except StoreFailed:
            shipper.created()
            self._in_flight = None


class Stubborn(Server):
    """Takes any object that it meets for its own."""

    def _put(self, shipper: Shipper, put: Put) -> None:
        with suppress(AlreadyThere):
            self._world.store.create(put.key, put.data)
        shipper.created()
        self._in_flight = None


@pytest.mark.parametrize("broken", [Trusting, Stubborn])
def test_a_broken_server_is_noticed(broken: type[Server]) -> None:
    def run_all() -> None:
        for seed in range(200):
            run(seed, broken)

    with pytest.raises((AssertionError, Corrupt)):
        run_all()
