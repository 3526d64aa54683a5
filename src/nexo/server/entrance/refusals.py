"""Answers connections that no broker takes, in plain bytes or over TLS."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl

from nexo import limits
from nexo.config import Settings
from nexo.dialects.dialect import Dialect
from nexo.errors import NexoError
from nexo.server.dialects import DIALECTS
from nexo.server.entrance.gate import PEEK_BYTES, Arrival, refuse_plain
from nexo.server.entrance.tls import server_context

_HANDSHAKE_S = 5.0


class Refusals:
    """Answers the first request of each connection with an error, and closes it."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._tls: ssl.SSLContext | None = None
        self._answering: set[asyncio.Task[None]] = set()

    def refuse(self, arrival: Arrival, error: NexoError) -> None:
        dialect = next(one for one in DIALECTS if one.name == arrival.dialect)
        if not arrival.tls:
            refuse_plain(arrival.sock, dialect, error)
        elif len(self._answering) >= limits.WAITING_FOR_BROKER:
            arrival.sock.close()
        else:
            task = asyncio.create_task(self._refuse_tls(arrival.sock, dialect, error))
            self._answering.add(task)
            task.add_done_callback(self._answering.discard)

    async def _refuse_tls(self, sock: socket.socket, dialect: Dialect, error: NexoError) -> None:
        self._tls = self._tls or server_context(self._settings)
        loop, reader = asyncio.get_running_loop(), asyncio.StreamReader()
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(_HANDSHAKE_S):
                transport, protocol = await loop.connect_accepted_socket(
                    lambda: asyncio.StreamReaderProtocol(reader), sock, ssl=self._tls
                )
                writer = asyncio.StreamWriter(transport, protocol, reader, loop)
                if first := await reader.read(PEEK_BYTES):
                    writer.write(dialect.refusal(first, error))
                writer.close()
                await writer.wait_closed()
        sock.close()
