"""All four brokers in one event loop, for tests and small tools: the same host, no processes."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterable
from functools import partial

from nexo.config import Settings
from nexo.model import Broker
from nexo.server.gate import listening_socket
from nexo.server.host import Host
from nexo.server.services import factory
from nexo.server.tls import server_context
from nexo.storage.files import OsFiles
from nexo.storage.ports import Files

_TURNS = 4
"""So many turns of the loop after the last accept, its connection is a session that can end."""


class EmbeddedServer:
    """A whole server on the running loop. ``port`` is known once it is opened."""

    def __init__(
        self,
        settings: Settings,
        brokers: Iterable[Broker] = tuple(Broker),
        make_files: Callable[[], Files] | None = None,
    ) -> None:
        self._settings = settings
        make_files = make_files or partial(OsFiles, settings.max_open_files)
        self.host = Host(settings, make_files, {broker: factory(broker) for broker in brokers})
        self._server: asyncio.Server | None = None
        self.port = settings.port

    async def open(self) -> None:
        """Recover and start listening."""
        self.host.open()
        listener = listening_socket(self._settings.host, self._settings.port)
        self.port = listener.getsockname()[1]
        self._server = await asyncio.get_running_loop().create_server(
            self._session, sock=listener, backlog=1024, ssl=server_context(self._settings)
        )

    def _session(self) -> asyncio.BufferedProtocol:
        return self.host.new_session()

    async def close(self) -> None:
        """Stop gracefully."""
        if self._server is not None:
            self._server.close()
        await self.host.close()
        await self._part()

    async def crash(self) -> None:
        """Stop as a kill would: nothing is flushed, written or said."""
        if self._server is not None:
            self._server.close()
        self.host.crash()
        await self._part()

    async def _part(self) -> None:
        """Connections end before the loop does, also those it was about to accept."""
        for _ in range(_TURNS):
            await asyncio.sleep(0)
        for session in list(self.host.sessions):
            session.kick("the server has ended")
        await asyncio.sleep(0)


def free_port(host: str = "127.0.0.1") -> int:
    """A port that was free a moment ago."""
    with socket.socket() as sock:
        sock.bind((host, 0))
        port: int = sock.getsockname()[1]
        return port
