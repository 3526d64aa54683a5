"""Runs services and their sessions on one event loop.

The same host runs one service per process under ``nexo serve``, or all four in one loop in
the embedded server. It owns what sessions share: the read buffer, the clock, the timer that
wakes services, and one flush of all touched sessions at the end of a turn.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
import socket
import ssl
from collections.abc import Callable, Mapping
from pathlib import Path

from nexo import __version__
from nexo.access.door import Done
from nexo.access.guard import Guard
from nexo.config import Settings
from nexo.dialects.nexo.inbox import ReadBuffer
from nexo.dialects.nexo.relay import Relay
from nexo.dialects.nexo.session import Session, run_other
from nexo.errors import NexoError, Overloaded, ShuttingDown, Unavailable
from nexo.model import Broker
from nexo.protocol import hello
from nexo.protocol.values import encode_value
from nexo.server.backup import Backups
from nexo.server.clock import SteadyClock
from nexo.server.process_status import process_status
from nexo.server.runtime import HostRuntime
from nexo.server.timings import Timings
from nexo.server.vigil import Vigil
from nexo.services.service import Answer, Handler, Service
from nexo.storage.ports import Files

log = logging.getLogger("nexo.host")

SHOWN_PEERS = 1_000
FAREWELL_S = 0.5
"""How long a stop waits for peers to take their last replies."""


class Host:
    """Services on one loop. Create it inside the loop; `open` before the first socket."""

    def __init__(
        self,
        settings: Settings,
        make_files: Callable[[], Files],
        services: Mapping[Broker, Callable[[HostRuntime], Service]],
        relay_folder: Path | None = None,
        awake_us: int = 0,
    ) -> None:
        self.settings = settings
        self.make_files = make_files
        self.loop = asyncio.get_running_loop()
        self.clock = SteadyClock()
        self.read_buffer = ReadBuffer()
        self.timings = Timings(services)
        self.vigil = Vigil(self.loop.call_soon, awake_us)
        self.sessions: set[Session] = set()
        self.services: dict[Broker, Service] = {}
        self.handlers: list[Handler | None] = [None] * 256
        self.answers: list[Answer | None] = [None] * 256
        """What goes before a handler of the same opcode."""
        self._runtimes: dict[Broker, HostRuntime] = {}
        self._backups = Backups(self.loop)
        self._relay_folder = relay_folder
        self._touched: list[Session] = []
        self._peers = 0
        self._turned_away = 0
        self._sweeper: asyncio.TimerHandle | None = None
        for broker, make in services.items():
            self._add(broker, make)
        self._guard: Guard | None = None
        if settings.auth:
            self._set_guard(Guard(settings.users_path, self.clock, self.sessions, relay_folder))

    def _set_guard(self, guard: Guard) -> None:
        self._guard = guard
        self.handlers = guard.over(self.handlers, self.services, run_other)
        self.answers = [None] * 256

    def _add(self, broker: Broker, make: Callable[[HostRuntime], Service]) -> None:
        runtime = HostRuntime(self, broker)
        service = runtime.service = make(runtime)
        self.services[broker] = service
        self._runtimes[broker] = runtime
        for op, handler in service.handlers.items():
            self.handlers[op] = handler
            self.answers[op] = service.answers.get(op)

    def open(self) -> None:
        """Recover every service from disk."""
        for service in self.services.values():
            service.open()
        if self._guard is not None:
            self._guard.open()
        self._sweep()

    # -- connections ------------------------------------------------------------

    async def adopt(self, sock: socket.socket, tls: ssl.SSLContext | None = None) -> None:
        """Serve an accepted connection."""
        try:
            await self.loop.connect_accepted_socket(self.new_session, sock, ssl=tls)
        except (OSError, ssl.SSLError) as error:
            log.info("connection not taken over: %s", error)
            sock.close()

    def new_session(self) -> Session:
        """A session for a client's connection."""
        return Session(self)

    def our_session(self) -> Session:
        """A session for a process of this server that speaks for its own callers."""
        return Session(self, ours=True)

    def trusted_session(self) -> Session:
        """A session for an internal socket."""
        return Session(self, trusted=True)

    def next_peer_id(self) -> int:
        """A number no other connection of this process has had."""
        self._peers += 1
        return self._peers

    def session_opened(self, session: Session) -> None:
        """Count it; `Overloaded` if there are too many clients already."""
        self.sessions.add(session)
        if len(self.sessions) > self.settings.max_connections and not session.trusted:
            self._turned_away += 1
            limit = self.settings.max_connections
            raise Overloaded(f"there are {limit} connections already; try again later")

    def session_closed(self, session: Session) -> None:
        """Let every service release what the peer held."""
        self.sessions.discard(session)
        self._backups.peer_closed(session)
        for service in self.services.values():
            service.peer_closed(session)

    def session_congested(self, session: Session) -> None:
        """Tell the services."""
        for service in self.services.values():
            service.peer_congested(session)

    def session_drained(self, session: Session) -> None:
        """Tell the services."""
        for service in self.services.values():
            service.peer_drained(session)

    def touched(self, session: Session) -> None:
        """Have the session flushed at the end of this turn, together with all others."""
        if not self._touched:
            self.loop.call_soon(self._flush)
        self._touched.append(session)

    def _flush(self) -> None:
        touched, self._touched = self._touched, []
        for session in touched:
            session.flush()
        answered_ns = self.timings.written()
        if answered_ns:
            self.vigil.sent(answered_ns)

    # -- what sessions ask --------------------------------------------------------

    def authenticate(self, session: Session, asked: hello.Hello, done: Done) -> None:
        """Check credentials; everyone is welcome while authentication is off."""
        if self._guard is None:
            done(None)
        else:
            self._guard.login(session, asked, done)

    def welcome(self) -> hello.Welcome:
        """What HELLO is answered with."""
        settings = self.settings
        return hello.Welcome(__version__, settings.max_payload_bytes, settings.idle_ping_ms)

    def status(self, service: Service) -> bytes:
        """A service's status with what the host knows, as a value."""
        runtime = self._runtimes[service.broker]
        return encode_value(
            service.status()
            | {
                "connections": len(self.sessions),
                "requests": self.timings.status(service.broker),
                "limits": self._limits(),
                "disk": runtime.disk_status(),
                "process": process_status(),
            }
        )

    def peers(self) -> bytes:
        """The connections, the newest first, as a value; a bounded number."""
        newest = heapq.nlargest(SHOWN_PEERS, self.sessions, key=lambda session: session.id)
        return encode_value([session.status() for session in newest])

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

    def backup(
        self, session: Session, broker: Broker, request_id: int, payload: memoryview
    ) -> None:
        """Let a client copy the files of ``broker``."""
        self._backups.answer(session, self._runtimes[broker].folder, request_id, payload)

    def open_relay(self, session: Session, broker: Broker) -> Relay:
        """A link to the process of another broker."""
        if self._relay_folder is None:
            raise Unavailable(f"the {broker.label} broker does not run here")
        return Relay(self, session, broker)

    def relay_path(self, broker: Broker) -> str:
        """The unix socket on which the process of ``broker`` takes relayed connections."""
        assert self._relay_folder is not None
        return str(self._relay_folder / f"{broker.label}.sock")

    # -- silent peers -------------------------------------------------------------

    def _sweep(self) -> None:
        """Ping silent peers that can answer; drop those that stay silent or stop mid-frame."""
        now, limit = self.clock.now_ms(), self.settings.idle_ping_ms
        for session in list(self.sessions):
            silent = now - session.heard_ms
            stuck = session.pinged or session.midway or session.congested
            if silent >= 2 * limit and stuck:
                session.kick("no sign of life")
            elif silent >= limit and session.coded and not session.pinged:
                session.ping()
        self._sweeper = self.loop.call_later(limit / 2000, self._sweep)

    # -- stopping -----------------------------------------------------------------

    async def close(self) -> None:
        """Finish what is in flight, make it durable, close every connection (SPEC A7)."""
        self._stop_watching()
        self.handlers, self.answers = [_refuse_all] * 256, [None] * 256
        for runtime in self._runtimes.values():
            await runtime.drain()
        for service in self.services.values():
            self._close_service(service)
        for runtime in self._runtimes.values():
            await runtime.close()
        self._flush()
        for session in list(self.sessions):
            session.finish()
        await self._let_leave()

    async def _let_leave(self) -> None:
        """Give what was sent a moment to leave; whoever does not read it is cut off."""
        await asyncio.sleep(0)
        deadline_s = self.loop.time() + FAREWELL_S
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
        if self._sweeper is not None:
            self._sweeper.cancel()
        if self._guard is not None:
            self._guard.close()

    def _close_service(self, service: Service) -> None:
        try:
            service.close()
        except (NexoError, OSError):
            log.exception("the %s broker could not close cleanly", service.broker.label)


def _refuse_all(peer: object, request_id: int, payload: memoryview) -> None:
    raise ShuttingDown("the server is stopping; reconnect in a moment")
