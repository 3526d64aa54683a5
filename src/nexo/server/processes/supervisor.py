"""``nexo serve``: starts the gate and one process per broker, restarts what dies (SPEC A2)."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
from collections.abc import Callable, Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING

import msgspec

from nexo.access.login import write_internal_token
from nexo.access.users import UsersFile
from nexo.config import Settings
from nexo.errors import ConfigError, NotLeader, Unavailable
from nexo.model import Broker
from nexo.replication.state import FILE, ReplicaState
from nexo.server.dialects import KAFKA
from nexo.server.entrance.gate import Arrival, Gate, Listener, listening_socket
from nexo.server.entrance.refusals import Refusals
from nexo.server.entrance.tls import server_context
from nexo.server.loop import run_loop
from nexo.server.processes import logs
from nexo.server.processes.addresses import Addresses
from nexo.server.processes.folders import FolderLock, RunFolder, make_folders, stamp_format
from nexo.server.processes.health import HealthServer, ServerState
from nexo.server.processes.process_kinds import AdminProcess, BrokerProcess
from nexo.server.processes.starting import Starter
from nexo.server.processes.system import notify, raise_descriptor_limit

if TYPE_CHECKING:
    from nexo.server.replica.roles import Replica

log = logging.getLogger("nexo.supervisor")


class Supervisor:
    """Runs a whole server in the current event loop."""

    def __init__(
        self,
        settings: Settings,
        listener: socket.socket,
        lock: FolderLock,
        starter: Starter,
        http_listener: socket.socket | None = None,
        health_listener: socket.socket | None = None,
        kafka_listener: socket.socket | None = None,
    ) -> None:
        self._settings = settings
        self._lock = lock
        self._starter = starter
        self._run_folder = RunFolder()
        run = self._run_folder.path
        if settings.auth:
            write_internal_token(run)
        self._brokers: dict[Broker, BrokerProcess] = {}
        self._leads = False
        tls = settings.tls_cert is not None
        listeners = [Listener(listener, tls=tls)]
        if kafka_listener is not None:
            listeners.append(Listener(kafka_listener, (KAFKA,), tls))
        self._gate = Gate(listeners, self._hand_over, settings)
        host, port = listener.getsockname()[:2]
        self.addresses = Addresses(host, port, _port(http_listener), tls, _port(health_listener))
        self._health = HealthServer(health_listener, self._serving)
        self._admin: AdminProcess | None = None
        if http_listener is not None:
            url = self.addresses.http_url
            self._admin = AdminProcess(settings, http_listener, run, url, lock.fds, starter.start)
        self._refusals = Refusals(settings)
        self._replica: Replica | None = None
        if settings.replicate:
            from nexo.server.replica.roles import Replica  # noqa: PLC0415 - few servers do

            self._replica = Replica(settings, self.addresses.url, run, self, self._show_replica)
        self._announcing: asyncio.Task[None] | None = None
        self._on_ready: Callable[[Addresses], None] = lambda _: None

    def _serving(self) -> dict[str, bool]:
        running = self._brokers
        return {broker.label: broker in running and running[broker].serves for broker in Broker}

    def _hand_over(self, broker: Broker, arrival: Arrival) -> None:
        if not self._leads:
            leader = self._replica.view.leader if self._replica is not None else ""
            says = f"{leader} leads" if leader else "no server leads yet"
            self._refusals.refuse(arrival, NotLeader(f"this server is a standby: {says}"))
        elif self._replica is not None and self._replica.leading.lapsed:
            says = "this server could not renew its lease in time, so another may lead: try again"
            self._refusals.refuse(arrival, NotLeader(says))
        else:
            self._brokers[broker].hand_over(arrival)

    def _show_replica(self, view: ReplicaState) -> None:
        self._health.replica = msgspec.structs.asdict(view)
        is_new = self._health.state not in (ServerState.DRAINING, ServerState.STANDBY)
        if view.role == "standby" and is_new:
            self._health.state = ServerState.STANDBY
            self._present()
        path = self._run_folder.path / FILE
        aside = path.with_suffix(".new")
        aside.write_bytes(msgspec.json.encode(view))
        aside.rename(path)

    # -- the brokers, while this server leads -------------------------------------------

    async def prepare_brokers(self) -> None:
        self._open_brokers()
        await asyncio.gather(*(process.waits.wait() for process in self._brokers.values()))

    def _open_brokers(self) -> None:
        lost = self._replica.leading.lose if self._replica is not None else (lambda: None)
        run, fds, start = self._run_folder.path, self._lock.fds, self._starter.start
        self._brokers = {
            broker: BrokerProcess(broker, self._settings, run, fds, start, lost)
            for broker in Broker
        }
        for process in self._brokers.values():
            process.child.open()

    async def start_brokers(self) -> None:
        """Have every broker's process serve; `ServerState.SERVING` follows once all are ready."""
        self._health.state = ServerState.STARTING
        if not self._brokers:
            self._open_brokers()
        self._leads = True
        for process in self._brokers.values():
            process.lead()
        self._announcing = asyncio.create_task(self._announce())

    async def stop_brokers(self, *, kill: bool) -> None:
        """End every broker's process, and raise `Unavailable` if one lost anything by that."""
        if self._announcing is not None:
            self._announcing.cancel()
        self._leads = self._leads and not kill
        brokers, timeout_s = self._brokers, 0.0 if kill else self._settings.stop_ms / 1000
        ending = asyncio.create_task(self._end_together(brokers.values()))
        clean = await asyncio.gather(*(process.stop(timeout_s) for process in brokers.values()))
        ending.cancel()
        self._leads, self._brokers = False, {}
        for process in brokers.values():
            process.close_channel()
        lost = [b.label for b, ended in zip(brokers, clean, strict=True) if not ended]
        if lost and not kill:
            raise Unavailable(
                f"the {' and '.join(lost)} process did not stop cleanly: what it had not written "
                "is lost; the log says why"
            )

    async def _end_together(self, processes: Iterable[BrokerProcess]) -> None:
        """Have processes end once all have settled: who holds a job of one may need the others."""
        for process in processes:
            await process.settled.wait()
        if self._health.state is ServerState.DRAINING:
            self._gate.close()
        self._leads = False
        for process in processes:
            process.tell_to_end()

    async def serve(self, on_ready: Callable[[Addresses], None]) -> None:
        """Serve until SIGTERM or SIGINT."""
        loop = asyncio.get_running_loop()
        stop: asyncio.Future[str] = loop.create_future()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, _ask_to_stop, stop, number.name)
        await self._health.open()
        self._starter.open()
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
            await process.ready.wait()
        self._health.state = ServerState.SERVING
        if self._replica is not None:
            self._replica.leading.serves()
        self._present()

    def _present(self) -> None:
        """Announce that the server is ready: to systemd, in the lock file, to the caller."""
        if self._admin is not None and self._admin.child.pid is None:
            self._admin.child.open()
        notify("READY=1")
        self._lock.write(pid=os.getpid(), **asdict(self.addresses))
        self._on_ready(self.addresses)

    async def _stop(self, replicating: asyncio.Task[None] | None) -> None:
        try:
            if self._replica is not None and replicating is not None:
                await self._replica.stop()
                await replicating
            else:
                await self.stop_brokers(kill=False)
        finally:
            await self._stop_rest()

    async def _stop_rest(self) -> None:
        self._gate.close()
        if self._admin is not None:
            await self._admin.child.stop(self._settings.stop_ms / 1000)
            self._admin.close()
        await self._starter.close()
        self._health.close()
        self._run_folder.close()
        self._lock.close()


def _ended(task: asyncio.Task[None], stop: asyncio.Future[str]) -> None:
    """A failure of replication ends the server: nobody knows whether it leads."""
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("replication has failed", exc_info=error)
        _ask_to_stop(stop, "replication has failed")


def _port(listener: socket.socket | None) -> int | None:
    return listener.getsockname()[1] if listener else None


def _ask_to_stop(stop: asyncio.Future[str], reason: str) -> None:
    if not stop.done():
        stop.set_result(reason)


def run(settings: Settings, on_ready: Callable[[Addresses], None] = lambda _: None) -> None:
    """Serve until SIGTERM or SIGINT; `ConfigError` if a port or the folder is taken."""
    logs.configure(settings, "supervisor")
    raise_descriptor_limit()
    server_context(settings)  # a bad certificate stops the start, not every connection
    if settings.auth and not UsersFile(settings.users_path).load():
        log.warning("there are no users yet, so nobody can log in: nexo user add NAME")
    make_folders(settings)
    lock = FolderLock(settings)
    if lock.left_by:
        log.info("%s ended without a stop: recovering its data", lock.left_by)
    try:
        stamp_format(settings)
        listener = listening_socket(settings.host, settings.port)
        http = listening_socket(settings.host, settings.http_port) if settings.dashboard else None
        health = _health_listener(settings) if settings.health else None
        kafka_port = settings.kafka_port
        kafka = listening_socket(settings.host, kafka_port) if kafka_port else None
    except ConfigError:
        lock.close()
        raise

    starter = Starter(settings)

    async def main() -> None:
        await Supervisor(settings, listener, lock, starter, http, health, kafka).serve(on_ready)

    run_loop(main())


def _health_listener(settings: Settings) -> socket.socket | None:
    """The socket for probes; None, with a warning, if another server has the default port."""
    try:
        return listening_socket(settings.host, settings.health_port)
    except ConfigError as error:
        if settings.health_port != Settings().health_port:
            raise
        log.warning("no /health and /ready: %s; set health_port", error.message)
        return None
