"""Runs services and their sessions on one event loop.

The same host runs one service per process under ``nexo serve``, or all four in one loop in
the embedded server. It owns what all protocols share: the clock, the services with their
runtimes, the connections and their deadlines.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from nexo import limits
from nexo.access.guard import Guard
from nexo.config import Settings
from nexo.dialects.busy_poll import BusyPoll
from nexo.dialects.dialect import Dialect, Origin, Session, Speaker
from nexo.errors import NexoError, Overloaded, Unavailable
from nexo.model import Broker
from nexo.server.clock import SteadyClock
from nexo.server.dialects import DIALECTS
from nexo.server.entrance.strangers import Strangers
from nexo.server.loop import LoopTurn
from nexo.server.processes.system import process_status
from nexo.server.runtime import HostRuntime
from nexo.services.backup import Backups
from nexo.services.connection import HostOverview
from nexo.services.service import Service
from nexo.storage.ports import Files

if TYPE_CHECKING:
    from nexo.services.replicating import Replicating

log = logging.getLogger("nexo.host")

WATCH_S = 0.5
"""How often connections that have not introduced themselves are looked at."""
SETTLE_POLL_S = 0.01
"""How often a stopping host looks at what clients hold."""
CLOSED_AT_ONCE, SOON_S = 10, 0.005
"""How many of them are closed at once, and the pause before the next ones."""


class Host:
    """Services on one loop. Create it inside the loop; `open` before the first socket."""

    def __init__(
        self,
        settings: Settings,
        make_files: Callable[[], Files],
        brokers: Iterable[Broker],
        run_folder: Path | None = None,
        busy_poll_us: int = 0,
        dialects: Sequence[Dialect] = DIALECTS,
        replicating: Replicating | None = None,
    ) -> None:
        self.settings = settings
        self.loop = asyncio.get_running_loop()
        self.clock = SteadyClock()
        self.turn = LoopTurn(self.loop)
        self.busy_poll = BusyPoll(self.loop.call_soon, busy_poll_us)
        self.sessions: dict[Session, None] = {}
        """Open connections, oldest first."""
        self.services: dict[Broker, Service] = {}
        self.guard: Guard | None = None
        self._runtimes: dict[Broker, HostRuntime] = {}
        self._run_folder = run_folder
        self._replicating = replicating
        self._last_id = 0
        self._turned_away = 0
        self._strangers: Strangers[Session] = Strangers(settings.max_silent_connections)
        self._handshakes: Strangers[asyncio.Task[None]] = Strangers(settings.max_silent_connections)
        self._timers: dict[Callable[[], None], asyncio.TimerHandle] = {}
        for broker in brokers:
            files = make_files() if replicating is None else replicating.files
            runtime = HostRuntime(
                self.loop, settings, self.clock, files, broker, self.turn, replicating
            )
            self._runtimes[broker] = runtime
            self.services[broker] = runtime.service
        folders = {broker: runtime.folder for broker, runtime in self._runtimes.items()}
        self.backups = Backups(self.loop, folders)
        self.overview = HostOverview(self._status, self.sessions)
        if settings.auth:
            self.guard = Guard(settings.users_path, self.clock, self.sessions, run_folder)
        self.speakers: dict[str, Speaker] = {
            one.name: one.start(self) for one in dialects if one.serves(self.services)
        }

    def open(self) -> None:
        """Recover every service from disk."""
        for runtime in self._runtimes.values():
            runtime.open()
        if self.guard is not None:
            self.guard.open()
        self._check_sessions()
        self._watch_strangers()

    # -- connections ------------------------------------------------------------

    def adopt(self, sock: socket.socket, dialect: str, tls: ssl.SSLContext | None = None) -> None:
        address = _address(sock)
        task = self.loop.create_task(self._adopt(sock, self.speakers[dialect], tls))
        if (dropped := self._handshakes.enter(task, address, self.loop.time())) is not None:
            dropped.cancel()

        def done(_: asyncio.Task[None]) -> None:
            self._handshakes.leave(task)
            if task.cancelled():
                sock.close()  # it may have been cancelled before it began

        task.add_done_callback(done)

    async def _adopt(
        self, sock: socket.socket, speaker: Speaker, tls: ssl.SSLContext | None
    ) -> None:
        timeout_s = limits.TLS_HANDSHAKE_S if tls else None
        session = speaker.session(Origin.CLIENT)
        try:
            await self.loop.connect_accepted_socket(
                lambda: session, sock, ssl=tls, ssl_handshake_timeout=timeout_s
            )
        except asyncio.CancelledError:
            if cast("Session", session) in self.sessions:  # uvloop closed it without a call
                session.connection_lost(None)
            raise
        except (OSError, ssl.SSLError) as error:
            log.info("connection not taken over: %s", error)
            sock.close()

    def next_id(self) -> int:
        self._last_id += 1
        return self._last_id

    def opened(self, session: Session) -> None:
        """Count it; at the limit the oldest that has not introduced itself gives way."""
        self.sessions[session] = None
        if session.origin is not Origin.CLIENT:
            return
        dropped = self._strangers.enter(session, session.address, self.loop.time())
        if dropped is not None:
            self._turn_away(dropped)
        limit = self.settings.max_connections
        if len(self.sessions) <= limit:
            return
        self._strangers.forget(lambda one: one.introduced)
        if (oldest := self._strangers.oldest) is not None and oldest is not session:
            self._turn_away(oldest)
        else:
            self._turned_away += 1
            raise Overloaded(f"there are {limit} connections already; try again later")

    def _turn_away(self, session: Session) -> None:
        self._turned_away += 1
        self._strangers.leave(session)
        if not session.introduced:
            session.kick("it sent no request, and others need its place")

    def closed(self, session: Session) -> None:
        self.sessions.pop(session, None)
        self._strangers.leave(session)
        self.backups.connection_closed(session)
        for service in self.services.values():
            service.connection_closed(session)

    def congested(self, session: Session) -> None:
        for service in self.services.values():
            service.connection_congested(session)

    def drained(self, session: Session) -> None:
        for service in self.services.values():
            service.connection_drained(session)

    # -- what sessions ask --------------------------------------------------------

    def _status(self, broker: Broker) -> dict[str, Any]:
        return self.services[broker].status() | {
            "connections": len(self.sessions),
            "dialects": Counter(session.dialect for session in self.sessions),
            "limits": self._limits(),
            "disk": self._runtimes[broker].disk_status(),
            "process": process_status(),
            "replica": None if self._replicating is None else self._replicating.status(),
        }

    def _limits(self) -> dict[str, int]:
        settings = self.settings
        return {
            "max_connections": settings.max_connections,
            "turned_away": self._turned_away,
            "max_in_flight": settings.max_in_flight,
            "max_payload_bytes": settings.max_payload_bytes,
            "write_buffer_bytes": settings.write_buffer_bytes,
            "slow_readers": sum(session.congested for session in self.sessions),
            "idle_ping_ms": settings.idle_ping_ms,
        }

    def link_path(self, broker: Broker) -> str:
        if self._run_folder is None:
            raise Unavailable(f"the {broker.label} broker does not run here")
        return str(self._run_folder / f"{broker.label}.sock")

    # -- deadlines ----------------------------------------------------------------

    def _every(self, interval_s: float, check: Callable[[], None]) -> None:
        self._timers[check] = self.loop.call_later(interval_s, check)

    def _check_sessions(self) -> None:
        now_ms = self.clock.now_ms()
        for session in list(self.sessions):
            session.check(now_ms)
        self._every(self.settings.idle_ping_ms / 2000, self._check_sessions)

    def _watch_strangers(self) -> None:
        """Close those whose time is over, a few at a time so that no reply to others is late."""
        overdue = self._strangers.overdue(self.loop.time() - limits.LOGIN_S, CLOSED_AT_ONCE)
        for session in overdue:
            if not session.introduced:
                session.kick("did not log in" if self.guard else "sent no request")
        are_more = len(overdue) == CLOSED_AT_ONCE
        self._every(SOON_S if are_more else WATCH_S, self._watch_strangers)

    # -- stopping -----------------------------------------------------------------

    async def settle(self) -> None:
        """Lend nothing more, and let clients finish what they hold, as long as they do.

        Everything else is served meanwhile.
        """
        services = self.services.values()
        for service in services:
            service.wind_down()
        began_s = changed_s = self.loop.time()
        before = -1
        while lent := sum(service.lent() for service in services):
            now_s = self.loop.time()
            if lent != before:
                before, changed_s = lent, now_s
            if now_s - changed_s > limits.IDLE_SETTLING_S or now_s - began_s > limits.SETTLING_S:
                log.info("stopping although clients hold %d jobs, records or transactions", lent)
                return
            await asyncio.sleep(SETTLE_POLL_S)

    async def close(self, progress: Callable[[], None] = lambda: None) -> bool:
        """Answer what has arrived, make it durable, close every connection (SPEC A7).

        ``progress`` is called during a long close. Returns whether every service closed
        without an error: what one could not write is lost.
        """
        self._stop_watching()
        beating = self.loop.create_task(_beat(progress))
        for speaker in self.speakers.values():
            speaker.stop()
        for runtime in self._runtimes.values():
            await runtime.drain()
        for runtime in self._runtimes.values():
            runtime.progress = progress
        clean = [self._close_service(service) for service in self.services.values()]
        for runtime in self._runtimes.values():
            await runtime.close()
        for session in list(self.sessions):
            session.dismiss()
        await self._let_leave()
        beating.cancel()
        return all(clean)

    async def _let_leave(self) -> None:
        """Give clients a moment to read what was sent; whoever does not is cut off."""
        await asyncio.sleep(0)
        deadline_s = self.loop.time() + limits.LONGEST_FAREWELL_S
        while self.sessions and self.loop.time() < deadline_s:
            await asyncio.sleep(0.001)
        for session in list(self.sessions):
            session.kick("it did not read what was sent")
        await asyncio.sleep(0)

    def crash(self) -> None:
        """Stop without saying or writing anything, as a kill would."""
        self._stop_watching()
        for runtime in self._runtimes.values():
            runtime.abandon()
        for session in list(self.sessions):
            session.kick("crash")

    def _stop_watching(self) -> None:
        for timer in self._timers.values():
            timer.cancel()
        for task in self._handshakes.overdue(float("inf")):
            task.cancel()
        if self.guard is not None:
            self.guard.close()

    def _close_service(self, service: Service) -> bool:
        try:
            service.close()
        except (NexoError, OSError):
            log.exception("the %s broker could not close cleanly", service.broker.label)
            return False
        return True


async def _beat(progress: Callable[[], None]) -> None:
    """Syncs may take long on a busy disk: while other work goes on they count as progress."""
    for _ in range(limits.LONGEST_SYNC_S):
        progress()
        await asyncio.sleep(1)


def _address(sock: socket.socket) -> str:
    try:
        name = sock.getpeername()
    except OSError:  # it is gone already
        return ""
    return str(name[0]) if isinstance(name, tuple) else ""
