"""A server that replicates, on a machine: a supervisor's process, and one for each broker.

The supervisor runs the real `Replica` and the real gate; what it starts are simulated processes
that do what `nexo.server.processes.worker` does. See `supervisor.py` there for the original.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.simulation.bucket import BucketStore
from tests.simulation.disk import Disk, SimFiles
from tests.simulation.network import SimSocket
from tests.simulation.world import MS, US, Machine, Process, S

# isort: split
from nexo import limits
from nexo.config import Settings
from nexo.errors import NexoError, NotLeader
from nexo.model import Broker
from nexo.replication.state import ReplicaState
from nexo.replication.taking import Superseded
from nexo.server.entrance import gate as gates
from nexo.server.entrance.gate import Arrival, Gate, Listener
from nexo.server.entrance.refusals import Refusals
from nexo.server.host import Host
from nexo.server.processes.child import FAST_S, LONGEST_PAUSE_S
from nexo.server.processes.worker import AGAIN, LOST
from nexo.server.replica.marks import Marks
from nexo.server.replica.roles import Replica
from nexo.server.replica.start import take_lead
from nexo.server.replica.surroundings import Surroundings, answers
from nexo.services.replicating import Replicating

if TYPE_CHECKING:
    from tests.simulation.two import Two

PORT = 7654
KILLED, FAILED = -9, 1


class SimCells:
    """Two numbers that the processes of a server share."""

    def __init__(self) -> None:
        self._values = (0.0, 0.0)

    def get(self) -> tuple[float, ...]:
        return self._values

    def set(self, first: float, second: float = 0.0) -> None:
        self._values = (first, second)


class ReplicaServer:
    """One of the servers: its machine, its disk, and the processes of its present run."""

    def __init__(self, system: Two, machine: Machine) -> None:
        self.system, self.machine = system, machine
        self.disk = Disk(machine)
        self.cells: dict[Path, SimCells] = {}
        self.supervisor: Supervisor | None = None
        self.starts = 0
        self._waits_to_start = False

    @property
    def runs(self) -> bool:
        return bool(self.machine.processes)

    @property
    def process(self) -> Process | None:
        """The supervisor's."""
        return None if self.supervisor is None else self.supervisor.process

    @property
    def processes(self) -> list[Process]:
        """Those that run, the one that is running now last: a kill of it does not return."""
        current = self.system.world.current
        return sorted(self.machine.processes, key=lambda process: process is current)

    def start(self) -> None:
        """Start it, once no process of an earlier run is left: they hold the folder's lock."""
        if self.runs:
            if not self._waits_to_start:
                self._waits_to_start = True
                self.system.world.after(500 * MS, self._start_again)
            return
        self.starts += 1
        name = f"{self.machine.name}.{self.starts}"
        process = Process(self.machine, name, self.system.make_loop)
        self.supervisor = Supervisor(self, process)
        process.on_exit = self.supervisor.ended
        process.start(self.supervisor.main)

    def _start_again(self) -> None:
        self._waits_to_start = False
        if self.supervisor is None or not self.supervisor.process.alive:
            self.start()

    def around(self) -> Surroundings:
        """The world as one process of it sees it."""
        return Surroundings(
            lambda: SimFiles(self.disk),
            lambda _settings: BucketStore(self.system.bucket),
            lambda path: self.cells.setdefault(path, SimCells()),
            answers,
        )

    def settings(self) -> Settings:
        name = self.machine.name
        return Settings(
            host=name,
            port=PORT,
            data_dir=Path(f"/{name}"),
            replicate="file:///bucket",
            replicate_address=f"nexo://{name}:{PORT}",
            **self.system.knobs.settings,
        )


class Supervisor:
    """The process that decides whether its server leads."""

    def __init__(self, server: ReplicaServer, process: Process) -> None:
        self.server, self.process, self.world = server, process, server.system.world
        self.brokers: dict[Broker, BrokerProcess] = {}
        self.role = ""
        self._leads = False

    def ended(self) -> None:
        """The supervisor's process is gone; the others hear of it."""
        for broker in self.brokers.values():
            broker.tell("gone")

    async def main(self) -> None:
        server, process = self.server, self.process
        stop = asyncio.Event()
        process.loop.add_signal_handler(15, stop.set)
        settings = server.settings()
        self._settings, self._run = settings, Path(f"/run-{process.name}")
        try:
            SimFiles(server.disk).make_folder(self._run)
            around = server.around()
            self.replica = Replica(
                settings, settings.replicate_address, self._run, self, self._changed, around
            )
            listener = gates.listening_socket(settings.host, PORT)
        except (NexoError, OSError) as error:
            self._end(f"does not start: {error!r}", 1.0)
            return
        self._refusals = Refusals(settings)
        gate = Gate([Listener(listener)], self._hand_over, settings)
        gate.open()
        running = asyncio.create_task(self.replica.run())
        stopping = asyncio.create_task(stop.wait())
        await asyncio.wait([running, stopping], return_when=asyncio.FIRST_COMPLETED)
        await self.replica.stop()
        try:
            await running
        except Exception as error:
            self._end(f"ends: {error!r}", 1.0)
            if not isinstance(error, (NexoError, OSError)):
                self.world.found("unhandled", f"{process.name}: {error!r}")
            return
        gate.close()
        self._end("has ended", 0.2)

    def _end(self, how: str, pause_s: float) -> None:
        self.world.story(f"{self.process.name} {how}")
        self.world.after(int(pause_s * S), self.server.start)
        self.process.kill()

    def _changed(self, view: ReplicaState) -> None:
        if view.role != self.role:
            self.role = view.role
            self.world.story(f"{self.process.name} is {view.role}")
            self.world.happened(f"role {view.role}")

    def _hand_over(self, broker: Broker, arrival: Arrival) -> None:
        """As `nexo.server.processes.supervisor.Supervisor` does."""
        replica = self.replica
        if not self._leads:
            leader = replica.view.leader
            says = f"{leader} leads" if leader else "no server leads yet"
            self._refusals.refuse(arrival, NotLeader(f"this server is a standby: {says}"))
        elif replica.leading.lapsed:
            says = "this server could not renew its lease in time, so another may lead: try again"
            self._refusals.refuse(arrival, NotLeader(says))
        else:
            self.brokers[broker].hand_over(arrival)

    # -- the brokers, while this server leads -------------------------------------------

    async def prepare_brokers(self) -> None:
        self._open_brokers()
        self.world.happened("prepared")

    def _open_brokers(self) -> None:
        self.brokers = {broker: BrokerProcess(self, broker) for broker in Broker}
        for process in self.brokers.values():
            process.open()

    async def start_brokers(self) -> None:
        if not self.brokers:
            self._open_brokers()
        self._leads = True
        for process in self.brokers.values():
            process.lead()

    async def stop_brokers(self, *, kill: bool) -> None:
        self._leads = self._leads and not kill
        brokers, timeout_s = self.brokers, 0.0 if kill else self._settings.stop_ms / 1000
        ending = asyncio.create_task(self._end_together(list(brokers.values())))
        await asyncio.gather(*(process.stop(timeout_s) for process in brokers.values()))
        ending.cancel()
        self._leads, self.brokers = False, {}

    async def _end_together(self, processes: list[BrokerProcess]) -> None:
        for process in processes:
            await process.settled.wait()
        self._leads = False
        for process in processes:
            process.tell("end")


class BrokerProcess:
    """One broker's process, as its supervisor sees it: kept alive, told, and given connections."""

    def __init__(self, supervisor: Supervisor, broker: Broker) -> None:
        self.supervisor, self.broker = supervisor, broker
        self.world = supervisor.world
        self.settled = asyncio.Event()
        self.worker: Worker | None = None
        self._ended = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._stopping = self._leads = False
        self._restarts = 0

    def open(self) -> None:
        self._task = asyncio.create_task(self._keep_alive())

    async def _keep_alive(self) -> None:
        loop, pause_s = asyncio.get_running_loop(), 0.0
        while True:
            began_s = loop.time()
            self._ended.clear()
            self.worker = Worker(self)
            if self._leads:
                self.tell("lead")
            await self._ended.wait()
            code = self.worker.code
            self.settled.set()
            if code == LOST:
                self.supervisor.replica.leading.lose()
            if self._stopping or code == LOST:
                return
            self._restarts += 1
            fast = loop.time() - began_s < FAST_S
            pause_s = min(LONGEST_PAUSE_S, pause_s * 2 + 0.05) if fast else 0.0
            await self._rest(pause_s)

    async def _rest(self, pause_s: float) -> None:
        """Wait before the next start; the task ends here if it is to stop."""
        await asyncio.sleep(pause_s)
        if self._stopping:
            raise asyncio.CancelledError

    def lead(self) -> None:
        self._leads = True
        self.tell("lead")

    def tell(self, word: str) -> None:
        """Say something to the process."""
        if (worker := self.worker) is not None:
            _send(worker.process, partial(worker.told, word))

    def told(self, word: str) -> None:
        """The process says how far it is."""
        if word == "settled":
            self.settled.set()
        elif word == "ready":
            self.settled.clear()
        elif word == "ended":
            self._ended.set()

    def hand_over(self, arrival: Arrival) -> None:
        if self.worker is None or not self.worker.take(arrival):
            arrival.sock.close()

    async def stop(self, timeout_s: float) -> None:
        self._stopping = True
        if self._task is None:
            return
        if self.worker is not None and self.worker.process.alive:
            self.worker.process.loop.signal(15)
            if not timeout_s:
                self.worker.process.kill()
        done, _ = await asyncio.wait([self._task], timeout=timeout_s or None)
        if not done and self.worker is not None:
            self.world.story(f"{self.worker.process.name} did not stop in time")
            self.worker.process.kill()
            await asyncio.wait([self._task])


class Worker:
    """What runs in the process of a broker; see `nexo.server.processes.worker.serve`."""

    def __init__(self, keeper: BrokerProcess) -> None:
        supervisor = keeper.supervisor
        server = self.server = supervisor.server
        self.keeper, self.world = keeper, supervisor.world
        self.code = KILLED
        self.term = ""
        """In which it serves."""
        self._run, self._settings = supervisor._run, supervisor._settings
        self._arrivals: deque[Arrival] = deque()
        self._adopt: Callable[[Arrival], None] | None = None
        self._serves = False
        name = f"{supervisor.process.name}.{keeper.broker.label}.{keeper._restarts}"
        self.process = Process(server.machine, name, server.system.make_loop)
        server.system.workers[self.process] = self
        self.process.on_exit = self._gone
        self._stop, self._end, self._lead = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.process.start(self._main)

    def _gone(self) -> None:
        if self._serves:
            self.server.system.server_ended(self.keeper.broker.label)
        while self._arrivals:
            self._arrivals.popleft().sock.close()
        _send(self.keeper.supervisor.process, lambda: self.keeper.told("ended"))

    def told(self, word: str) -> None:
        match word:
            case "lead":
                self._lead.set()
            case "end":
                self._end.set()
            case "gone":
                self._end.set()
                self._stop.set()

    def take(self, arrival: Arrival) -> bool:
        """A connection is handed over; while this process starts, it waits."""
        if not self.process.alive:
            return False
        sock: Any = arrival.sock
        move(sock, self.process)
        self._arrivals.append(arrival)
        if self._adopt is not None:
            _send(self.process, self._adopt_all)
        return True

    def _adopt_all(self) -> None:
        while self._arrivals and self._adopt is not None:
            self._adopt(self._arrivals.popleft())

    def _exit(self, code: int) -> None:
        self.code = code
        self.process.kill()

    async def _main(self) -> None:
        try:
            code = await self._serve()
        except (NexoError, OSError) as error:  # a traceback, and another try
            self.world.story(f"{self.process.name} ends: {error!r}")
            code = FAILED
        self._exit(code)

    async def _serve(self) -> int:
        broker, settings, stop = self.keeper.broker, self._settings, self._stop
        self.process.loop.add_signal_handler(15, stop.set)
        if not await _unless(stop, self._lead.wait()):
            return 0
        replicating = await self._take_lead()
        host = Host(settings, lambda: SimFiles(self.server.disk), [broker], replicating=replicating)
        host.open()
        await replicating.began()
        self._adopt = lambda arrival: host.adopt(arrival.sock, arrival.dialect)
        self._adopt_all()
        self._serves = True
        self.server.system.serves(self)
        _send(self.keeper.supervisor.process, lambda: self.keeper.told("ready"))
        await stop.wait()
        if not self._end.is_set() and replicating.refusal() is None:
            await self._settle(host)
        await host.close()
        if replicating.mark is not None:
            marks = Marks(settings, lambda: SimFiles(self.server.disk))
            marks.put(broker, replicating.mark)
        return AGAIN if replicating.restart_wanted else 0

    async def _settle(self, host: Host) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limits.SETTLING_S):
                await host.settle()
                _send(self.keeper.supervisor.process, lambda: self.keeper.told("settled"))
                await self._end.wait()

    async def _take_lead(self) -> Replicating:
        broker, around = self.keeper.broker, self.server.around()
        taking = asyncio.to_thread(take_lead, broker, self._settings, self._run, around)
        try:
            taken = await _unless(self._stop, taking)
        except Superseded as error:
            self.world.story(f"{self.process.name} is superseded: {error}")
            self._exit(LOST)
        if taken is None:
            self._exit(0)
        replicating: Replicating = taken()
        self.term = replicating._shipper.writer.split("/")[1]
        self.server.system.leads.watch(broker.label, replicating._shipper)

        def end(lost: bool) -> None:
            self.world.story(f"{self.process.name} {'has lost the lead' if lost else 'restarts'}")
            if lost:
                self.process.loop.call_later(0.05, partial(self._exit, LOST))
            else:
                self._stop.set()

        replicating.on_end = end
        return replicating


def move(sock: SimSocket, process: Process) -> None:
    """Give a connection to another process of the same machine."""
    fd = sock.fileno()
    sock.process.sockets.pop(fd, None)
    sock.process.hot.pop(fd, None)
    sock.process = process
    process.sockets[fd] = sock
    sock.arm()


def _send(process: Process, word: Callable[[], None]) -> None:
    """Have another process do something in a turn of its own, a moment later."""

    def arrive() -> None:
        if process.alive:
            process.loop.call_soon_threadsafe(word)

    process.world.after(process.world.chance.randint(30, 300) * US, arrive)


async def _unless(stop: asyncio.Event, work: Any) -> Any:
    """What ``work`` returns; None if the process is asked to stop before."""
    working, stopping = asyncio.create_task(work), asyncio.create_task(stop.wait())
    await asyncio.wait([working, stopping], return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if working.done():
        return working.result()
    working.cancel()
    return None
