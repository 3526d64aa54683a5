"""One run: machines, servers, clients, faults, and the checks at the end."""

from __future__ import annotations

import asyncio
import gc
import random
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar, TypeVar, cast

from tests.simulation import jobs, seams
from tests.simulation.disk import ROOMY, Disk, DiskFault, SimFiles
from tests.simulation.knobs import Knobs
from tests.simulation.loop import SimLoop
from tests.simulation.network import Network
from tests.simulation.schedule import EventFaults, Fault, draw
from tests.simulation.world import MS, Machine, Process, S, World

# isort: split
from nexo.client._async.client import AsyncClient
from nexo.config import Settings
from nexo.errors import NexoError
from nexo.server.embedded import EmbeddedServer
from tests.simulation.clients.actor import Actor
from tests.simulation.clients.bounded import BoundedActor
from tests.simulation.clients.groups import GroupMember
from tests.simulation.clients.kafka import KafkaPublisher, KafkaTransactor
from tests.simulation.clients.pubsub import Announcer
from tests.simulation.clients.queue import Pusher, Worker
from tests.simulation.clients.store import LockActor, StoreActor
from tests.simulation.clients.stream import Publisher, SyncPublisher
from tests.simulation.clients.transactions import Reader, Transactor
from tests.simulation.clients.waiting import ListeningActor, WaitingActor
from tests.simulation.oracle.everywhere import watch_logs
from tests.simulation.oracle.model import Model

T = TypeVar("T")
M = TypeVar("M", bound=Model)
PORT = 7654
FAULTS_S = 60
"""How long faults happen."""
CHECKED_S = 400
"""How long the checks may take after that."""


AREAS: dict[str, tuple[tuple[str, type[Actor]], ...]] = {
    "store": (("s0", StoreActor), ("s1", StoreActor), ("l0", LockActor), ("l1", LockActor)),
    "waiting": (("w0", WaitingActor), ("w1", WaitingActor), ("h0", ListeningActor)),
    "queue": (
        ("p0", Pusher), ("p1", Pusher), ("k0", Worker), ("k1", Worker), ("b0", BoundedActor),
    ),
    "stream": (
        ("e0", Publisher), ("e1", Publisher), ("o0", SyncPublisher), ("o1", SyncPublisher),
    ),
    "transactions": (("t0", Transactor), ("t1", Transactor), ("r0", Reader)),
    "groups": (("g0", GroupMember), ("g1", GroupMember)),
    "pubsub": (("a0", Announcer), ("a1", Announcer)),
    "kafka": (
        ("c0", KafkaPublisher), ("c1", KafkaPublisher), ("x0", KafkaTransactor),
        ("x1", KafkaTransactor),
    ),
}  # fmt: skip
"""Who acts, by what it is about."""


class Server:
    """The embedded server on a machine: started, ended in many ways, started again."""

    def __init__(self, system: System, machine: Machine) -> None:
        self.system, self.machine = system, machine
        self.disk = Disk(machine)
        self.process: Process | None = None
        self._starts = 0

    @property
    def runs(self) -> bool:
        return self.process is not None and self.process.alive

    def start(self) -> None:
        if self.runs:
            return
        self._starts += 1
        name = f"{self.machine.name}.{self._starts}"
        self.process = process = Process(self.machine, name, self.system.make_loop)
        process.on_exit = self.system.server_ended
        process.start(self._main)

    async def _main(self) -> None:
        settings = Settings(
            host=self.machine.name,
            port=PORT,
            data_dir=Path(f"/{self.machine.name}"),
            **self.system.knobs.settings,
        )
        process = self.process
        assert process is not None
        try:
            server = EmbeddedServer(settings, make_files=lambda: SimFiles(self.disk))
            await server.open()
        except (NexoError, OSError) as error:
            self.system.world.story(f"{process.name} does not start: {error!r}")
            self.system.world.after(1 * S, self.start)
            process.kill()
            return
        self.system.world.story(f"{process.name} serves")
        self.system.server_started()
        await self._until_term(server, process)

    async def _until_term(self, server: EmbeddedServer, process: Process) -> None:
        ended = asyncio.Event()
        process.loop.add_signal_handler(15, ended.set)
        await ended.wait()
        struck, sound = self.system.struck, self.disk.is_sound_for(process)
        await server.close()
        self.system.server_stopped(clean=sound and struck == self.system.struck)
        self.system.world.story(f"{process.name} has ended")
        self.system.world.after(200 * MS, self.start)
        process.kill()


class System:
    """Everything of one run."""

    targets: ClassVar[dict[str, tuple[float, tuple[str, ...]]]] = {
        "kill": (3, ("m0",)), "power": (1.5, ("m0",)), "pause": (2, ("m0",)), "term": (1, ("m0",)),
        "disk": (6, ("m0",)), "cut": (2, ("m0",)), "silence": (1, ("m0",)), "slow": (1, ("m0",)),
        "full": (0.7, ("m0",)), "clock": (0.5, ("m0",)), "socket": (1.5, ("m0", "m0", "c0", "c1")),
    }  # fmt: skip
    most_faults = 40
    faults_s = FAULTS_S
    areas: ClassVar[dict[str, tuple[tuple[str, type[Actor]], ...]]] = AREAS

    def __init__(
        self,
        seed: int,
        tell: Callable[[str], None] | None = None,
        faults: Sequence[Fault] | None = None,
        knobs: Knobs | None = None,
    ) -> None:
        gc.disable()
        watch_logs()
        self.world = world = World(seed, tell)
        jobs.world_now[:] = [world]
        random.seed(seed)
        self.knobs = knobs or self.draw_knobs(world.random("knobs"))
        for where, value in self.knobs.modules.items():
            module, _, name = where.partition(":")
            setattr(__import__(module, fromlist=["_"]), name, value)
        self.faults_s = self.knobs.faults_s or self.faults_s
        self.network = Network(world)
        self.network.lag_us = self.knobs.lag_us
        seams.replace_threads()
        seams.replace_sockets(self.network)
        if faults is None:
            faults = self.draw_faults(world.random("faults"))
        self.faults = list(faults)
        self.is_quiet = False
        self.lives = 0
        self.struck = 0
        """How many faults there were."""
        self.clock_was_set = False
        self._models: dict[str, Model] = {}
        self._shared: dict[str, Any] = {}
        self._number = 0
        self._events = EventFaults(self.faults)
        world.on_event = self._on_event
        self.servers: dict[str, Any] = self.make_servers()
        self.actors: list[Actor] = []
        self._checked = 0

    @classmethod
    def draw_knobs(cls, chance: random.Random) -> Knobs:
        """One run of four keeps the defaults; each has three of the areas."""
        areas = tuple(chance.sample(list(cls.areas), 3))
        if chance.random() < 0.25:
            return Knobs(areas=areas)
        return Knobs(
            areas=areas,
            settings={
                "segment_bytes": chance.choice((16, 64, 1024, 64 * 1024)) * 1024,
                "flush_ms": chance.choice((5, 50, 200)),
                "max_open_files": chance.choice((8, 256)),
                "store_snapshot_ms": chance.choice((0, 500, 5_000)),
            },
            modules={
                "nexo.storage.log:_INDEX_EVERY": chance.choice((1, 16, 256)) * 4096,
                "nexo.storage.index:SPACING": chance.choice((512, 8 * 1024)),
            },
            machines=chance.choice((1, 2, 3)),
            lag_us=chance.choice(((30, 400), (200, 5_000), (5_000, 60_000))),
        )

    def draw_faults(self, chance: random.Random) -> list[Fault]:
        """What goes wrong in this run."""
        return draw(chance, self.targets, self.faults_s * S, self.most_faults)

    # -- what actors use ------------------------------------------------------------

    def shared(self, name: str, make: Callable[[], T]) -> T:
        """One object for all actors of a run."""
        if name not in self._shared:
            self._shared[name] = make()
        found: T = self._shared[name]
        return found

    def model(self, name: str, make: Callable[[], M]) -> M:
        """What all actors of a run know of one thing; it hears of the servers' fate."""
        if name not in self._models:
            self._models[name] = make()
        found = self._models[name]
        return cast("M", found)

    def first(self, what: str) -> bool:
        """Whether nobody has asked this before: what one actor does for all."""
        asked: set[str] = self.shared("asked", set)
        is_first = what not in asked
        asked.add(what)
        return is_first

    def last(self, what: str, of: int) -> bool:
        """Whether all but the caller have asked this before."""
        asked: dict[str, int] = self.shared("last", dict)
        asked[what] = asked.get(what, 0) + 1
        return asked[what] == of

    def next_number(self) -> int:
        self._number += 1
        return self._number

    @property
    def store_is_kept(self) -> bool:
        return bool(self.knobs.settings.get("store_snapshot_ms"))

    def url_for(self, actor: str) -> str:
        """Which servers an actor knows."""
        return f"nexo://m0:{PORT}"

    # -- parts ------------------------------------------------------------------------

    def make_loop(self, process: Process) -> SimLoop:
        return SimLoop(process, self.network)

    def acknowledged(self, actor: Actor, asked_s: float) -> None:
        """A server has acknowledged what an actor asked for then."""

    def make_servers(self) -> dict[str, Any]:
        return {"m0": Server(self, Machine(self.world, "m0"))}

    @property
    def kinds(self) -> list[tuple[str, Any]]:
        """The actors of this run, by name."""
        return [one for area in self.knobs.areas for one in self.areas[area]]

    def _start_clients(self) -> None:
        for number in range(self.knobs.machines):
            machine = Machine(self.world, f"c{number}")
            mine = self.kinds[number :: self.knobs.machines]
            process = Process(machine, machine.name, self.make_loop)
            process.start(lambda mine=mine: self._act(mine))  # type: ignore[misc]

    async def _act(self, kinds: Sequence[tuple[str, Any]]) -> None:
        actors = []
        for name, kind in kinds:
            client = AsyncClient(self.url_for(name), timeout=10, ping=3)
            actors.append(kind(self, name, client))
        self.actors += actors
        await asyncio.gather(*(self._live(actor) for actor in actors))

    async def _live(self, actor: Actor) -> None:
        try:
            await actor.run()
            await asyncio.sleep(self.healing_s)
            await actor.check()
        except NexoError as error:
            self.world.story(f"{actor.name} gives up: {error!r}")
        except Exception as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            self.world.found("actor", f"{actor.name}: {error!r} at {where.filename}:{where.lineno}")
        self._checked += 1

    healing_s = 5.0

    # -- faults -------------------------------------------------------------------------

    def _on_event(self, name: str, process: Process | None) -> None:
        if process is not None and not self.is_quiet:
            for fault in self._events.due(name, process.machine.name):
                self.strike(fault)

    def strike(self, fault: Fault) -> None:
        """Let it happen."""
        if self.is_quiet:
            return
        self.world.story(f"fault {fault}")
        self.world.troubles += 1
        self.struck += 1
        getattr(self, f"_{fault.kind}")(fault)

    def models(self, broker: str = "") -> list[Model]:
        """Those that a broker's fate concerns; all if it is not named."""
        known = self._models.values()
        return [model for model in known if not broker or model.broker in ("", broker)]

    def server_stopped(self, *, clean: bool) -> None:
        """A server has ended as it was asked to."""
        for model in self._models.values():
            model.server_stopped(clean=clean)

    def server_ended(self, broker: str = "") -> None:
        """A process of a server is gone, in whatever way."""
        self.lives += 1
        for model in self.models(broker):
            model.server_ended()

    def server_started(self, broker: str = "") -> None:
        """A server serves."""
        for model in self.models(broker):
            model.server_started()

    def _kill(self, fault: Fault) -> None:
        server = self.servers[fault.target]
        self.world.after(fault.for_ns, server.start)
        if server.process is not None:
            server.process.kill()

    def _power(self, fault: Fault) -> None:
        server = self.servers[fault.target]
        if not server.runs:
            return
        for model in self._models.values():
            model.power_lost(5.0 + self.paused_s + server.disk.unsynced_s)
        server.disk.lose_power()
        self.world.after(fault.for_ns, server.start)
        assert server.process is not None
        server.process.kill(silent=True)

    paused_s = 0.0

    def _pause(self, fault: Fault) -> None:
        process = self.servers[fault.target].process
        if process is not None and process.alive and not process.paused:
            self.paused_s = max(self.paused_s, fault.for_ns / S)
            self.world.after(fault.for_ns, self._proceed, process)
            process.pause()

    def _proceed(self, process: Process) -> None:
        self.world.troubles += 1
        process.proceed()

    def _term(self, fault: Fault) -> None:
        process = self.servers[fault.target].process
        if process is not None and process.alive and not process.paused:
            process.loop.signal(15)

    def _disk(self, fault: Fault) -> None:
        disk = self.servers[fault.target].disk
        disk.faults.append(DiskFault(fault.calls, fault.number))

    def _full(self, fault: Fault) -> None:
        disk = self.servers[fault.target].disk
        disk.capacity = disk.used + 10_000
        self.world.after(fault.for_ns, self._not_full, disk)

    def _not_full(self, disk: Disk) -> None:
        disk.capacity = ROOMY

    def _cut(self, fault: Fault) -> None:
        pairs = self.network.between(fault.target, "*")
        if pairs:
            pair = pairs[fault.number % len(pairs)]
            pipe = pair[fault.number % 2].out
            if pipe is not None:
                pipe.cut_after = fault.number

    def _socket(self, fault: Fault) -> None:
        self.network.failing = fault.number

    def _silence(self, fault: Fault) -> None:
        for other in self.world.machines:
            if other != fault.target:
                direction = (other, fault.target) if fault.for_ns % 2 else (fault.target, other)
                self.network.silent.add(direction)
                self.world.after(fault.for_ns, self._heal, direction)

    def _heal(self, direction: tuple[str, str]) -> None:
        self.world.troubles += 1
        self.network.heal(*direction)

    def _slow(self, fault: Fault) -> None:
        for other in self.world.machines:
            self.network.slow[other, fault.target] = 200_000
        self.world.after(fault.for_ns, self._fast)

    def _fast(self) -> None:
        self.network.slow.clear()

    def _clock(self, fault: Fault) -> None:
        self.clock_was_set = True
        self.world.machines[fault.target].skew_ns += fault.for_ns

    def _flip(self, fault: Fault) -> None:
        disk = self.servers[fault.target].disk
        paths = sorted(path for path, inode in disk.names.items() if inode is not None)
        if paths:
            disk.flip(paths[fault.number % len(paths)], fault.number // 1024)

    # -- the run --------------------------------------------------------------------------

    def run(self) -> None:
        """From the first start to the last check."""
        world = self.world
        world.story(f"seed {world.seed}, knobs {self.knobs}")
        for server in self.servers.values():
            world.after(0, server.start)
        world.after(100 * MS, self._start_clients)
        for fault in self.faults:
            if not fault.event:
                world.at(fault.at_ns, self.strike, fault)
        world.run(self.faults_s * S)
        self._calm()
        ends = sum(1 for _ in self.kinds)
        world.run((self.faults_s + CHECKED_S) * S, lambda: self._checked >= ends)
        if world.ended:
            return
        if self._checked < ends:
            world.found(
                "served again", f"{ends - self._checked} actors have not ended their checks"
            )
        self.check()

    def check(self) -> None:
        """What is looked at once all actors have ended their checks."""

    def _calm(self) -> None:
        """No faults from now on; whatever is stopped goes on, whoever is needed comes."""
        self.world.story("quiet")
        self.is_quiet = True
        for server in self.servers.values():
            self._not_full(server.disk)
            server.disk.faults.clear()
            if server.process is not None and server.process.alive:
                server.process.proceed()
                self._restart_if_broken(server)
            else:
                server.start()
        for direction in list(self.network.silent):
            self.network.heal(*direction)
        self._fast()

    def _restart_if_broken(self, server: Server) -> None:
        """A failed sync is final by design: a person restarts the server."""
        process = server.process
        assert process is not None
        if any(files.is_broken for files in server.disk.users(process)):
            process.kill()
            server.start()
