"""``nexo serve``: starts the gate and one process per broker, restarts what dies (SPEC A2)."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

import msgspec

from nexo import limits
from nexo.access import internal
from nexo.access.users import UsersFile
from nexo.config import Settings
from nexo.errors import ConfigError, NotLeader, Unavailable
from nexo.model import Broker
from nexo.server import loops, replica_start
from nexo.server.dialects import KAFKA
from nexo.server.entrance import handover
from nexo.server.entrance.gate import Arrival, Gate, Listener, listening_socket, turn_away
from nexo.server.entrance.tls import server_context
from nexo.server.processes import descriptors, folder_format, logs, worker
from nexo.server.processes.addresses import Addresses
from nexo.server.processes.admin_process import AdminProcess
from nexo.server.processes.child import Child
from nexo.server.processes.folder_lock import FolderLock, make_folders
from nexo.server.processes.health import Health, HealthServer, ServerState
from nexo.server.processes.run_folder import RunFolder
from nexo.server.processes.service_manager import notify
from nexo.server.replica import Replica, View

log = logging.getLogger("nexo.supervisor")

RETRY_S = 0.01


class BrokerProcess:
    """The process of one broker, and the channel that its connections are handed over on."""

    def __init__(
        self,
        broker: Broker,
        settings: Settings,
        run: Path,
        lock_fds: Sequence[int],
        on_lost: Callable[[], None] = lambda: None,
    ) -> None:
        """``on_lost`` is called if the process has lost the lead; it is not restarted then."""
        self.broker = broker
        self._on_lost = on_lost
        self._settings = settings
        self._run = run
        self._lock_fds = lock_fds
        self._loop = asyncio.get_running_loop()
        self._channel: socket.socket | None = None
        self._theirs: socket.socket | None = None
        self._waiting: deque[Arrival] = deque()
        self._retrying = False
        self._ready = asyncio.Event()
        self.child = Child(broker.label, self._start, self._goes_on)

    def _goes_on(self, code: int) -> bool:
        if code == replica_start.LOST:
            self._on_lost()
        return code != replica_start.LOST

    @property
    def serves(self) -> bool:
        """Whether the process has recovered its data and lives."""
        return self._ready.is_set() and self.child.pid is not None

    def _start(self) -> tuple[list[str], Sequence[int]]:
        self._ready.clear()
        self.close_channel()
        self._channel, self._theirs = handover.pair()
        self._loop.add_reader(self._channel.fileno(), self._on_ready, self._channel)
        command = worker.command(self.broker, self._settings, self._theirs, self._run)
        return command, (self._theirs.fileno(), *self._lock_fds)

    def _on_ready(self, channel: socket.socket) -> None:
        self._loop.remove_reader(channel.fileno())
        if self._theirs is not None:
            self._theirs.close()
            self._theirs = None
        with contextlib.suppress(OSError):
            if channel.recv(len(worker.READY)):
                self._ready.set()
                if self.child.restarts:
                    log.info("the %s process is back", self.broker.label)

    async def stop(self, timeout_s: float) -> bool:
        """End the process; False if it was killed or could not write everything."""
        path = worker.progress_path(self._run, self.broker)
        return await self.child.stop(timeout_s, lambda: _modified_ns(path))

    async def ready(self) -> None:
        """Wait until the process serves."""
        await self._ready.wait()

    def hand_over(self, arrival: Arrival) -> None:
        """Give a connection to the process; while it restarts, the connection waits."""
        if len(self._waiting) >= limits.WAITING_FOR_BROKER:
            self._waiting.popleft().sock.close()
        self._waiting.append(arrival)
        if not self._retrying:
            self._send_waiting()

    def _send_waiting(self) -> None:
        self._retrying = False
        while self._waiting:
            if self._channel is None or not handover.send(self._channel, self._waiting[0]):
                self._retrying = True
                self._loop.call_later(RETRY_S, self._send_waiting)
                return
            self._waiting.popleft()

    def close_channel(self) -> None:
        """Drop the channel to a process that has ended."""
        for end in (self._channel, self._theirs):
            if end is not None:
                self._loop.remove_reader(end.fileno())
                end.close()
        self._channel = self._theirs = None


class Supervisor:
    """Runs a whole server in the current event loop."""

    def __init__(
        self,
        settings: Settings,
        listener: socket.socket,
        lock: FolderLock,
        http_listener: socket.socket | None = None,
        health_listener: socket.socket | None = None,
        kafka_listener: socket.socket | None = None,
    ) -> None:
        self._settings = settings
        self._lock = lock
        self._run_folder = RunFolder()
        run = self._run_folder.path
        if settings.auth:
            internal.write_token(run)
        self._brokers: dict[Broker, BrokerProcess] = {}
        tls = settings.tls_cert is not None
        listeners = [Listener(listener, tls=tls)]
        if kafka_listener is not None:
            listeners.append(Listener(kafka_listener, (KAFKA,), tls))
        self._gate = Gate(listeners, self._hand_over, settings.max_connections)
        host, port = listener.getsockname()[:2]
        self.addresses = Addresses(host, port, _port(http_listener), tls, _port(health_listener))
        self._health = Health(self._serving)
        self._probes = HealthServer(self._health, health_listener) if health_listener else None
        self._admin: AdminProcess | None = None
        if http_listener is not None:
            self._admin = AdminProcess(settings, http_listener, run, self.addresses.http_url)
        self._replica: Replica | None = None
        if settings.replicate:
            self._replica = Replica(settings, self.addresses.url, run, self, self._show_replica)
        self._announcing: asyncio.Task[None] | None = None
        self._on_ready: Callable[[Addresses], None] = lambda _: None

    def _serving(self) -> dict[str, bool]:
        if not self._brokers:
            return {broker.label: False for broker in Broker}
        return {broker.label: process.serves for broker, process in self._brokers.items()}

    def _hand_over(self, broker: Broker, arrival: Arrival) -> None:
        if self._brokers:
            self._brokers[broker].hand_over(arrival)
        else:
            self._turn_away(arrival)

    def _turn_away(self, arrival: Arrival) -> None:
        """Say who leads, unless the connection speaks TLS, whose handshake is not done here."""
        leader = self._replica.view.leader if self._replica is not None else ""
        says = f"{leader} leads" if leader else "no server leads yet"
        if not arrival.tls:
            turn_away(arrival, NotLeader(f"this server is a standby: {says}"))
        arrival.sock.close()

    def _show_replica(self, view: View) -> None:
        self._health.replica = asdict(view)
        is_new = self._health.state not in (ServerState.DRAINING, ServerState.STANDBY)
        if view.role == "standby" and is_new:
            self._health.state = ServerState.STANDBY
            self._present()
        (self._run_folder.path / "replica.json").write_bytes(msgspec.json.encode(view))

    # -- the brokers, while this server leads -------------------------------------------

    async def start_brokers(self) -> None:
        """Start every broker's process; `ServerState.SERVING` follows once all are ready."""
        self._health.state = ServerState.STARTING
        lost = self._replica.lose if self._replica is not None else (lambda: None)
        run, fds = self._run_folder.path, self._lock.fds
        self._brokers = {
            broker: BrokerProcess(broker, self._settings, run, fds, lost) for broker in Broker
        }
        for process in self._brokers.values():
            process.child.open()
        self._announcing = asyncio.create_task(self._announce())

    async def stop_brokers(self, *, kill: bool) -> None:
        """End every broker's process, and raise `Unavailable` if one lost anything by that."""
        if self._announcing is not None:
            self._announcing.cancel()
        brokers, self._brokers = self._brokers, {}
        timeout_s = 0.0 if kill else self._settings.stop_ms / 1000
        clean = await asyncio.gather(*(process.stop(timeout_s) for process in brokers.values()))
        for process in brokers.values():
            process.close_channel()
        lost = [b.label for b, ended in zip(brokers, clean, strict=True) if not ended]
        if lost and not kill:
            raise Unavailable(
                f"the {' and '.join(lost)} process did not stop cleanly: what it had not written "
                "is lost; the log says why"
            )

    async def serve(self, on_ready: Callable[[Addresses], None]) -> None:
        """Serve until SIGTERM or SIGINT."""
        loop = asyncio.get_running_loop()
        stop: asyncio.Future[str] = loop.create_future()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, _ask_to_stop, stop, number.name)
        if self._probes is not None:
            await self._probes.open()
        self._on_ready = on_ready
        self._gate.open()
        replicating = None
        if self._replica is None:
            await self.start_brokers()
        else:
            replicating = asyncio.create_task(self._replica.run())
            replicating.add_done_callback(lambda task: _ended(task, stop))
        log.info("stopping: %s", await stop)
        self._health.state = ServerState.DRAINING
        notify("STOPPING=1")
        began_s = loop.time()
        await self._stop(replicating)
        log.info("stopped in %.1f s", loop.time() - began_s)

    async def _announce(self) -> None:
        for process in self._brokers.values():
            await process.ready()
        self._health.state = ServerState.SERVING
        self._present()

    def _present(self) -> None:
        """Be found by clients, probes and people."""
        if self._admin is not None and self._admin.child.pid is None:
            self._admin.child.open()
        notify("READY=1")
        self._lock.write(pid=os.getpid(), **asdict(self.addresses))
        self._on_ready(self.addresses)

    async def _stop(self, replicating: asyncio.Task[None] | None) -> None:
        self._gate.close()
        try:
            if self._replica is not None and replicating is not None:
                await self._replica.stop()
                await replicating
            else:
                await self.stop_brokers(kill=False)
        finally:
            await self._stop_rest()

    async def _stop_rest(self) -> None:
        if self._admin is not None:
            await self._admin.child.stop(self._settings.stop_ms / 1000)
            self._admin.close()
        if self._probes is not None:
            self._probes.close()
        self._run_folder.close()
        self._lock.close()


def _ended(task: asyncio.Task[None], stop: asyncio.Future[str]) -> None:
    """A failure of replication ends the server: nobody knows whether it leads."""
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("replication has failed", exc_info=error)
        _ask_to_stop(stop, "replication has failed")


def _modified_ns(path: Path) -> int | None:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return None


def _port(listener: socket.socket | None) -> int | None:
    return listener.getsockname()[1] if listener else None


def _ask_to_stop(stop: asyncio.Future[str], reason: str) -> None:
    if not stop.done():
        stop.set_result(reason)


def run(settings: Settings, on_ready: Callable[[Addresses], None] = lambda _: None) -> None:
    """Serve until SIGTERM or SIGINT; `ConfigError` if a port or the folder is taken."""
    logs.configure(settings, "supervisor")
    descriptors.raise_limit()
    server_context(settings)  # a bad certificate stops the start, not every connection
    if settings.auth and not UsersFile(settings.users_path).load():
        log.warning("there are no users yet, so nobody can log in: nexo user add NAME")
    make_folders(settings)
    lock = FolderLock(settings)
    if lock.left_by:
        log.info("%s ended without a stop: recovering its data", lock.left_by)
    try:
        folder_format.settle(settings)
        listener = listening_socket(settings.host, settings.port)
        http = listening_socket(settings.host, settings.http_port) if settings.dashboard else None
        health = _health_listener(settings) if settings.health else None
        kafka_port = settings.kafka_port
        kafka = listening_socket(settings.host, kafka_port) if kafka_port else None
    except ConfigError:
        lock.close()
        raise

    async def main() -> None:
        await Supervisor(settings, listener, lock, http, health, kafka).serve(on_ready)

    loops.run(main())


def _health_listener(settings: Settings) -> socket.socket | None:
    """A second server beside one with the default port starts without probes, and says so."""
    try:
        return listening_socket(settings.host, settings.health_port)
    except ConfigError as error:
        if settings.health_port != Settings().health_port:
            raise
        log.warning("no /health and /ready: %s; set health_port", error.message)
        return None
