"""Leases, takeovers and two modes of writing, by chance and in seeded time: never two that lead.

Each seed is one schedule over the real lease, `Taking`, `LogReplay`, `Shipper` and the rules of
`nexo.replication.tenure`. A server may be paused and woken, cut from the store, cut from clients,
or lost with its disk; the store misbehaves. The checker judges what clients were told.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from random import Random

import pytest

from nexo.replication import lease as leases
from nexo.replication.lease import LeaderLease
from nexo.replication.log_objects import Mark
from nexo.replication.objects import AlreadyThere, StoreFailed, log_key
from nexo.replication.replay import LogReplay
from nexo.replication.shipping import LeadLost, Put, Shipper
from nexo.replication.taking import Taking
from nexo.replication.tenure import Tenure, Watch
from nexo.storage.disk.recording import FileCreated, FileWritten
from tests.memory_files import MemoryFiles
from tests.memory_objects import MemoryObjects
from tests.unit.replication.misbehaving import MisbehavingObjects

SEEDS = int(os.environ.get("SOAK_SCHEDULES") or (20_000 if os.environ.get("SOAK") else 700))
STEPS = 300
LEASE_S = 3.0
ROOT = Path("/data/queue")


@dataclass(frozen=True)
class Told:
    """A write that a client was told is done."""

    time_s: float
    term: int
    """Number of the lease that its server began to lead with."""
    text: str
    replicated: bool


class World:
    """The time, the store, and the history."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.now_s = 0.0
        self.store = MisbehavingObjects(MemoryObjects(), self.random, 0.1)
        self.told: list[Told] = []
        self.names = (f"server{number}" for number in count())
        self.texts = (str(number) for number in count())


class CutStore:
    """The store as one server reaches it."""

    def __init__(self, world: World) -> None:
        self._store = world.store
        self.cut = False

    def create(self, key: str, data: bytes) -> None:
        self._check()
        self._store.create(key, data)

    def get(self, key: str) -> bytes | None:
        self._check()
        return self._store.get(key)

    def list(self, prefix: str, after: str = "") -> list[str]:
        self._check()
        return self._store.list(prefix, after)

    def delete(self, keys: Iterable[str]) -> None:
        self._check()
        self._store.delete(keys)

    def _check(self) -> None:
        if self.cut:
            raise StoreFailed("no way to the store")


class Server:
    """A standby or a leader, which does a little whenever it has a turn."""

    def __init__(self, world: World) -> None:
        self.name = next(world.names)
        self.store = CutStore(world)
        self.paused = self.clients_cut = False
        self._world = world
        self._begin()

    def _begin(self) -> None:
        """Stand by with an empty folder."""
        self._files = MemoryFiles()
        self._files.make_folder(ROOT)
        self._replay = LogReplay(self.store, self._files, ROOT)
        self._watch: Watch | None = None
        self._tenure: Tenure | None = None
        self._taking: Taking | None = None
        self._shipper: Shipper | None = None
        self._put: Put | None = None
        self._open: list[tuple[int, str]] = []
        self._renew_s = 0.0

    def step(self) -> None:
        try:
            if self._tenure is None:
                self._stand_by()
            elif self._shipper is None:
                self._claim()
            else:
                self._lead(self._shipper, self._tenure)
        except LeadLost:
            self._begin()

    def could_not_ask(self) -> None:
        """The store did not answer."""
        if self._tenure is None and self._watch is not None:
            self._watch.could_not_look(self._world.now_s)

    # -- as a standby ---------------------------------------------------------------------

    def _stand_by(self) -> None:
        now_s = self._world.now_s
        if self._watch is None:
            self._first_look(now_s)
            return
        watch = self._watch
        newer = leases.get(self.store, watch.number + 1)
        if newer is not None:
            watch.saw(watch.number + 1, newer, now_s)
            return
        if watch.overdue(now_s):
            self._replay.to_end()
        if now_s >= watch.due_s():
            self._take(watch.number + 1)

    def _first_look(self, now_s: float) -> None:
        found = leases.newest(self.store)
        if found is not None:
            self._watch = Watch(self.name, *found, now_s)
        else:
            self._take(0)

    def _take(self, number: int) -> None:
        now_s = self._world.now_s
        newest = leases.newest(self.store)
        if newest is not None and newest[0] >= number:
            assert self._watch is not None
            self._watch.saw(*newest, now_s)
            return
        self._term, self._number = number, number
        if leases.take(self.store, number, self._lease()):
            self._tenure = Tenure(LEASE_S, now_s)

    def _lease(self) -> LeaderLease:
        return LeaderLease(f"{self.name}-{self._term}", self.name, "", int(LEASE_S * 1000), 0, {})

    def _claim(self) -> None:
        """As the broker's process does, which tries until it is done or killed."""
        tries = count()

        def pause() -> None:
            if next(tries) > 3:
                raise StoreFailed("later")

        writer = f"{self.name}/{self._term}/{self._world.now_s}"
        taking = self._taking or Taking(
            self.store, self._files, ROOT, writer, lambda: int(self._world.now_s * 1000), pause
        )
        self._taking = taking
        self._shipper, _ = taking.take(self._replay.mark, is_sure=True)

    # -- as a leader ----------------------------------------------------------------------

    def _lead(self, shipper: Shipper, tenure: Tenure) -> None:
        now_s = self._world.now_s
        if not self.clients_cut:
            self._serve(shipper, tenure)
        if now_s >= self._renew_s:
            self._renew_s = now_s + LEASE_S / 3
            self._renew(tenure)
        self._ship(shipper)

    def _serve(self, shipper: Shipper, tenure: Tenure) -> None:
        text = next(self._world.texts)
        ticket = shipper.gather([FileCreated("f"), FileWritten("f", 0, text.encode())])
        if self._world.random.random() < 0.5:
            self._open.append((ticket, text))
        elif self.may_acknowledge(tenure):
            self._tell(text, replicated=False)

    def may_acknowledge(self, tenure: Tenure) -> bool:
        return self._world.now_s <= tenure.until_s

    def _tell(self, text: str, *, replicated: bool) -> None:
        self._world.told.append(Told(self._world.now_s, self._term, text, replicated))

    def _renew(self, tenure: Tenure) -> None:
        def lapsed() -> bool:
            return tenure.lapsed(self._world.now_s)

        late = lapsed()
        tenure.asking(self._number + 1, self._world.now_s, alone=False)
        if not leases.renew(self.store, self._number + 1, self._lease(), lapsed):
            raise LeadLost("another lease")
        self._number += 1
        tenure.renewed(self._world.now_s, alone=False, proved=late)

    def _ship(self, shipper: Shipper) -> None:
        self._put = self._put or shipper.next_put(0)
        if self._put is None:
            return
        try:
            self.store.create(self._put.key, self._put.data)
            shipper.created()
        except AlreadyThere:
            found = self.store.get(self._put.key)
            assert found is not None
            shipper.refused(found)
        self._put = None
        while self._open and self._open[0][0] <= shipper.shipped:
            self._tell(self._open.pop(0)[1], replicated=True)


def run(seed: int, server_type: type[Server] = Server) -> World:
    """One schedule."""
    world = World(seed)
    servers = [server_type(world) for _ in range(2)]
    for _ in range(STEPS):
        world.now_s += world.random.uniform(0.02, 0.3)
        world.store.pass_time()
        at = world.random.randrange(len(servers))
        fate = world.random.random()
        server = servers[at]
        if fate < 0.02:
            server.paused = not server.paused
        elif fate < 0.04:
            server.store.cut = not server.store.cut
        elif fate < 0.05:
            server.clients_cut = not server.clients_cut
        elif fate < 0.055:
            servers[at] = server_type(world)  # lost with its disk
        elif not server.paused:
            try:
                server.step()
            except StoreFailed:
                server.could_not_ask()
    return world


def verdict(world: World) -> Counter[str]:
    """What breaks a promise, by kind; and how much was done."""
    replay_texts = _log(world)
    found = Counter(told=len(world.told), terms=len({told.term for told in world.told}))
    newest = -1
    for told in world.told:
        found["two that acknowledge"] += not told.replicated and told.term < newest
        newest = max(newest, told.term)
        found["lost"] += told.replicated and told.text not in replay_texts
    found["twice"] = len(replay_texts) - len(set(replay_texts))
    return found


def _log(world: World) -> list[str]:
    mark, texts = Mark(), []
    while (data := world.store.inner.get(log_key(mark.number))) is not None:
        group, mark = mark.take(data)
        for operation in group.operations:
            if isinstance(operation, FileWritten):
                texts.append(operation.data.decode())
    return texts


BROKEN = ("two that acknowledge", "lost", "twice")


def test_in_no_schedule_do_two_servers_acknowledge() -> None:
    total: Counter[str] = Counter()
    for seed in range(SEEDS):
        found = verdict(run(seed))
        assert not any(found[kind] for kind in BROKEN), f"seed {seed}: {dict(found)}"
        total += found
    print(  # noqa: T201
        f"{SEEDS:,} schedules, {total['told']:,} acknowledged in {total['terms']:,} terms: "
        + ", ".join(f"{kind}: {total[kind]}" for kind in BROKEN)
    )
    assert total["told"] > 20 * SEEDS, "little work was done"
    assert total["terms"] > SEEDS, "hardly any takeovers"


class Careless(Server):
    """Acknowledges without a look at its lease."""

    def may_acknowledge(self, tenure: Tenure) -> bool:
        return True


class Forgetful(Server):
    """Counts a renewal from its last try, though an earlier one may have created the lease."""

    def _renew(self, tenure: Tenure) -> None:
        tenure.asking(-1, 0.0, alone=False)
        super()._renew(tenure)


@pytest.mark.parametrize("broken", [Careless, Forgetful])
def test_the_checker_notices_a_broken_server(broken: type[Server]) -> None:
    found = (verdict(run(seed, broken)) for seed in range(10 * SEEDS))
    assert any(each["two that acknowledge"] for each in found)
