"""All four brokers in one event loop, for tests and small tools: the same host, no processes."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from nexo.config import Settings
from nexo.dialects.dialect import Dialect
from nexo.model import Broker
from nexo.server.dialects import DIALECTS, KAFKA
from nexo.server.entrance.gate import Arrival, Gate, Listener, listening_socket
from nexo.server.entrance.tls import server_context
from nexo.server.host import Host
from nexo.storage.disk.files import OsFiles
from nexo.storage.ports import Files

_TURNS = 4
"""Turns of the loop after which a connection that was accepted last has a session to end."""


class EmbeddedServer:
    """A whole server on the running loop. ``port`` is known once it is opened."""

    def __init__(
        self,
        settings: Settings,
        brokers: Iterable[Broker] = tuple(Broker),
        make_files: Callable[[], Files] | None = None,
        dialects: Sequence[Dialect] = DIALECTS,
    ) -> None:
        self._settings = settings
        make_files = make_files or partial(OsFiles, settings.max_open_files)
        self.host = Host(settings, make_files, brokers, dialects=dialects)
        self._dialects = dialects
        self._gate: Gate | None = None
        self._tls: ssl.SSLContext | None = None
        self.port = settings.port
        self._listeners: list[Listener] = []

    def listen(self, dialect: Dialect, port: int = 0, *, tls: bool = False) -> int:
        """Listen for one dialect alone as well; before `open`. Returns the port."""
        sock = listening_socket(self._settings.host, port)
        self._listeners.append(Listener(sock, (dialect,), tls))
        found: int = sock.getsockname()[1]
        return found

    async def open(self) -> None:
        self.host.open()
        listener = listening_socket(self._settings.host, self._settings.port)
        self.port = listener.getsockname()[1]
        self._tls = server_context(self._settings)
        self._listeners.append(Listener(listener, self._dialects, tls=self._tls is not None))
        if self._settings.kafka_port:
            self.listen(KAFKA, self._settings.kafka_port, tls=self._tls is not None)
        self._gate = Gate(self._listeners, self._adopt, self._settings)
        self._gate.open()

    def _adopt(self, _: Broker, arrival: Arrival) -> None:
        self.host.adopt(arrival.sock, arrival.dialect, self._tls if arrival.tls else None)

    async def close(self) -> None:
        await self.host.settle()
        if self._gate is not None:
            self._gate.close()
        await self.host.close()
        await self._end_sessions()

    async def crash(self) -> None:
        """Stop as a kill would: nothing is flushed, written or said."""
        if self._gate is not None:
            self._gate.close()
        self.host.crash()
        await self._end_sessions()

    async def _end_sessions(self) -> None:
        """End all connections before the loop ends, also those that are being accepted."""
        for _ in range(_TURNS):
            await asyncio.sleep(0)
        for session in list(self.host.sessions):
            session.kick("the server has ended")
        await asyncio.sleep(0)
