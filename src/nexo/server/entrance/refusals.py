"""Answers connections that no broker takes, in plain bytes or over TLS."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from functools import partial
from typing import cast

from nexo import limits
from nexo.config import Settings
from nexo.dialects.dialect import Dialect
from nexo.errors import NexoError
from nexo.server.dialects import DIALECTS
from nexo.server.entrance.gate import Arrival, refuse_plain
from nexo.server.entrance.tls import server_context

_HANDSHAKE_S = 5.0


class Refusals:
    """Answers the first request of each connection with an error, and closes it."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._tls: ssl.SSLContext | None = None
        self._answering: set[asyncio.Task[None]] = set()

    def refuse(self, arrival: Arrival, error: NexoError) -> None:
        """Answer a connection and close it."""
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
        loop = asyncio.get_running_loop()
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(_HANDSHAKE_S):
                _, answer = await loop.connect_accepted_socket(
                    partial(_Answer, dialect, error), sock, ssl=self._tls
                )
                await answer.ended
        sock.close()


class _Answer(asyncio.Protocol):
    """One reply to whatever comes first."""

    def __init__(self, dialect: Dialect, error: NexoError) -> None:
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._dialect = dialect
        self._error = error

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._transport.write(self._dialect.refusal(data, self._error))
        self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.ended.done():
            self.ended.set_result(None)
