"""Scenario two: two servers that replicate over one bucket, pauses, losses, and clocks apart."""

from __future__ import annotations

import random
from collections import deque
from typing import Any, ClassVar

from tests.simulation.bucket import LAGS_US, WAYS, Bucket, Put
from tests.simulation.knobs import Knobs
from tests.simulation.replicated import PORT, ReplicaServer, Worker
from tests.simulation.schedule import EVENTS, Fault, draw
from tests.simulation.system import AREAS, System
from tests.simulation.world import Machine, Process, S

# isort: split
from tests.simulation.clients.actor import Actor
from tests.simulation.clients.replicated import (
    FastPusher,
    FastWorker,
    LoyalLockActor,
    LoyalPublisher,
    LoyalStoreActor,
    ReplicatedPublisher,
    ReplicatedPusher,
    ReplicatedWorker,
)
from tests.simulation.clients.store import LockActor, StoreActor
from tests.simulation.clients.stream import Publisher, SyncPublisher
from tests.simulation.oracle.copies import check_copies
from tests.simulation.oracle.leads import LeadOracle, Takeover

_NAMES = ("m0", "m1")
EVENTS_OF_TWO = (
    *EVENTS, "rename *.mark", "role *", "prepared", "put lease", "did put lease", "put log",
    "did put log", "put base", "did put base", "put file", "put reset", "did put reset",
    "get lease", "list lease", "list log", "delete *", "did delete *",
)  # fmt: skip
HEALING_S = 25.0
"""A lease, a takeover, and what a standby has to load."""


class Two(System):
    """Two servers, of which one leads."""

    targets: ClassVar[dict[str, tuple[float, tuple[str, ...]]]] = {
        "kill": (3, _NAMES), "kill_one": (3, _NAMES), "power": (1, _NAMES), "lose": (0.7, _NAMES),
        "pause": (5, _NAMES), "pause_one": (3, _NAMES), "term": (1.5, _NAMES), "cut": (1, _NAMES),
        "silence": (1.5, (*_NAMES, "store")), "slow": (0.5, _NAMES), "clock": (0.5, _NAMES),
        "socket": (1, _NAMES),
        "store": (4, _NAMES), "outage": (1.5, (*_NAMES, "*")), "disk": (0.5, _NAMES),
    }  # fmt: skip
    damages: ClassVar[dict[str, tuple[float, tuple[str, ...]]]] = {
        "wipe": (1, ("bucket",)), "missing": (2, ("bucket",)), "damage": (2, ("bucket",)),
    }  # fmt: skip
    most_faults = 20
    faults_s = 120
    healing_s = HEALING_S
    areas: ClassVar[dict[str, tuple[tuple[str, type[Actor]], ...]]] = {
        "store": (("s0", StoreActor), ("l0", LockActor), ("l1", LockActor)),
        "replicated queue": (("p0", ReplicatedPusher), ("k0", ReplicatedWorker)),
        "queue": (("p1", FastPusher), ("k1", FastWorker)),
        "replicated stream": (("e0", ReplicatedPublisher), ("e1", ReplicatedPublisher)),
        "stream": (("f0", Publisher), ("o0", SyncPublisher)),
        "two stores": (("s@m0", LoyalStoreActor), ("s@m1", LoyalStoreActor)),
        "two locks": (("l@m0", LoyalLockActor), ("l@m1", LoyalLockActor)),
        "two streams": (
            ("e@m0", LoyalPublisher), ("e@m1", LoyalPublisher), ("e2", ReplicatedPublisher),
        ),
        "groups": AREAS["groups"],
        "pubsub": AREAS["pubsub"],
    }  # fmt: skip

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.workers: dict[Process, Worker] = {}
        self.bucket_was_damaged = False
        super().__init__(*args, **kwargs)

    @classmethod
    def draw_knobs(cls, chance: random.Random) -> Knobs:
        """One run of four keeps the defaults of the server."""
        areas = tuple(chance.sample(list(cls.areas), 3))
        knobs = Knobs(
            areas=areas,
            lag_us=chance.choice(((30, 400), (200, 5_000))),
            damaged=chance.random() < 0.15,
            bucket_lag_us=chance.choice(LAGS_US),
            bucket_page=chance.choice((1000, 5)),
            skew_s=chance.choice((0, 0, 1, 3_600, 5 * 3_600)) * chance.choice((-1, 1)),
        )
        if chance.random() < 0.25:
            return knobs
        kept = chance.choice((2, 5, 20))
        knobs.settings = {
            "segment_bytes": chance.choice((16, 64, 1024)) * 1024,
            "replicate_ms": chance.choice((10, 50, 250, 1_000)),
            "replicate_wait_ms": chance.choice((1_000, 10_000)),
            "replicate_lease_ms": chance.choice((1_000, 3_000, 3_000, 10_000)),
            "replicate_keep_ms": chance.choice((0, 0, 60_000, 86_400_000)),
        }
        knobs.modules = {
            "nexo.limits:LOG_OBJECTS_PER_BASE": chance.choice((3, 10, 50, 10_000)),
            "nexo.limits:BUCKET_LOOK_S": chance.choice((2.0, 20.0)),
            "nexo.replication.fence:LEASES_KEPT": kept,
            "nexo.server.replica.leading:LEASES_KEPT": kept,
        }
        return knobs

    def draw_faults(self, chance: random.Random) -> list[Fault]:
        kinds, longest_s = dict(self.targets), 90.0
        if self.knobs.damaged:  # whoever loses both has lost
            kinds = {name: one for name, one in kinds.items() if name not in ("lose", "power")}
            kinds |= self.damages
        return draw(chance, kinds, self.faults_s * S, self.most_faults, EVENTS_OF_TWO, longest_s)

    def make_servers(self) -> dict[str, Any]:
        self.bucket = Bucket(self.world, self.network)
        knobs = self.knobs
        self.bucket.lag_us, self.bucket.page = knobs.bucket_lag_us, knobs.bucket_page
        self.leads = LeadOracle(self.world)
        self.bucket.on_put = self._was_put
        Machine(self.world, "store")
        machines = {name: Machine(self.world, name) for name in _NAMES}
        machines["m1"].skew_ns = knobs.skew_s * S
        self.clock_was_set = knobs.skew_s != 0
        return {name: ReplicaServer(self, machine) for name, machine in machines.items()}

    def url_for(self, actor: str) -> str:
        _, _, only = actor.partition("@")
        return f"nexo://{only}:{PORT}" if only else f"nexo://m0:{PORT},m1:{PORT}"

    # -- what happens ------------------------------------------------------------------

    def _was_put(self, put: Put) -> None:
        takeover = self.leads.put(put)
        if takeover is not None:
            self.taken_over(takeover)

    def taken_over(self, takeover: Takeover) -> None:
        """Another server's process, or one with other files, goes on with a log."""
        self.world.story(str(takeover))
        if self.bucket_was_damaged:  # who has less than the whole waits for a person
            self.world.excused |= {"served again", "one leader"}
        self.server_ended(takeover.broker)
        for model in self.models(takeover.broker):
            model.taken_over(takeover.since_s, lossy=self.bucket_was_damaged)

    def serves(self, worker: Worker) -> None:
        """A broker's process serves."""
        self.world.story(f"{worker.process.name} serves in term {worker.term}")
        self.server_started(worker.keeper.broker.label)

    def acknowledged(self, actor: Actor, asked_s: float) -> None:
        if actor.broker is None:
            return
        wire = actor.client._links[actor.broker]._wire
        sock = getattr(getattr(wire, "_transport", None), "_sock", None)
        if sock is None:
            return
        worker = self.workers.get(sock.peer.process)
        if worker is not None:
            self.leads.acknowledged(actor.broker, worker.term, worker.process.name, asked_s)

    # -- faults --------------------------------------------------------------------------

    def _kill(self, fault: Fault) -> None:
        server = self.servers[fault.target]
        self.world.after(fault.for_ns, server.start)
        for process in server.processes:
            process.kill()

    def _one_of(self, fault: Fault) -> Process | None:
        processes: list[Process] = self.servers[fault.target].processes
        names = sorted(process.name for process in processes)
        if not names:
            return None
        name = names[fault.number % len(names)]
        return next(process for process in processes if process.name == name)

    def _kill_one(self, fault: Fault) -> None:
        process = self._one_of(fault)
        if process is None:
            return
        server = self.servers[fault.target]
        if process is server.process:
            self.world.after(fault.for_ns, server.start)
        self.world.story(f"{process.name} is killed")
        process.kill()

    def _power(self, fault: Fault) -> None:
        self._power_off(fault, wiped=False)

    def _lose(self, fault: Fault) -> None:
        self._power_off(fault, wiped=True)

    def _power_off(self, fault: Fault, *, wiped: bool) -> None:
        server: ReplicaServer = self.servers[fault.target]
        if not server.runs:
            return
        for model in self._models.values():
            model.power_lost(5.0 + self.paused_s + server.disk.unsynced_s)
        server.disk.lose_power()
        if wiped:
            server.disk.wipe()
            self.leads.lost_folder(server.machine.name)
        self.world.after(fault.for_ns, server.start)
        for process in server.processes:
            process.kill(silent=True)

    def _pause(self, fault: Fault) -> None:
        self._pause_all(self.servers[fault.target].processes, fault)

    def _pause_one(self, fault: Fault) -> None:
        process = self._one_of(fault)
        if process is not None:
            self.world.story(f"{process.name} is paused")
            self._pause_all([process], fault)

    def _pause_all(self, processes: list[Process], fault: Fault) -> None:
        self.paused_s = max(self.paused_s, fault.for_ns / S)
        for process in processes:
            if process.alive and not process.paused:
                self.world.after(fault.for_ns, self._proceed, process)
                process.pause()

    def _store(self, fault: Fault) -> None:
        ways = [WAYS[(fault.number >> shift) % len(WAYS)] for shift in (4, 8, 12)]
        failing = self.bucket.failing.setdefault(fault.target, deque())
        failing.extend(ways[: 1 + fault.number % 3])

    def _outage(self, fault: Fault) -> None:
        machines = _NAMES if fault.target == "*" else (fault.target,)
        self.bucket.down |= set(machines)
        self.world.after(fault.for_ns, self.bucket.down.difference_update, machines)

    def _damage_done(self, what: str) -> None:
        self.world.story(f"the bucket {what}")
        self.bucket_was_damaged = True

    def _wipe(self, _: Fault) -> None:
        self.bucket.wipe()
        self._damage_done("is empty")

    def _missing(self, fault: Fault) -> None:
        self._damage_done(f"loses {self.bucket.lose_one(fault.number)}")

    def _damage(self, fault: Fault) -> None:
        self._damage_done(f"has a flipped bit in {self.bucket.damage_one(fault.number)}")

    def _calm(self) -> None:
        self.bucket.failing.clear()
        self.bucket.down.clear()
        super()._calm()
        for server in self.servers.values():
            for process in server.processes:
                process.proceed()

    def _restart_if_broken(self, server: Any) -> None:
        broken = {
            process
            for process in server.processes
            if any(files.is_broken for files in server.disk.users(process))
        }
        for process in broken:
            process.kill()
        if server.process in broken:
            server.start()

    # -- the end ---------------------------------------------------------------------------

    def check(self) -> None:
        until_ns = self.world.now_ns + 30 * S
        while len(leading := self._leading()) != 1 and self.world.now_ns < until_ns:
            self.world.run(self.world.now_ns + 1 * S)
        if len(leading) != 1:
            self.world.found("one leader", f"{leading or 'nobody'} leads once it is quiet")
            return
        if self.bucket_was_damaged:  # what is gone is noticed in time, not at once
            return
        leader = self.servers[leading[0]]
        standby = next(one for one in self.servers.values() if one is not leader)
        check_copies(self, leader, standby)

    def _leading(self) -> list[str]:
        return [name for name, one in self.servers.items() if one.supervisor.role == "leader"]
