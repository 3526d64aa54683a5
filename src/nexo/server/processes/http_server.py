"""Uvicorn behind deadlines and limits that it does not have itself.

A connection that sends no request, stops in the middle of its headers or body, or does not
finish its TLS handshake is closed. Connections are bounded, in all and per address; at a
limit the one that has been silent longest is closed, so that strangers cannot keep users out.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Iterator
from time import monotonic
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from nexo import limits

log = logging.getLogger("nexo.admin")

SWEEP_S = 1.0
_ACCEPTS = 64


class HttpConnection(H11Protocol):
    """One connection, and since when a request is due on it."""

    waits_since_s = 0.0
    body_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.waits_since_s = monotonic()
        self.transport.set_write_buffer_limits(high=1024 * 1024)

    def data_received(self, data: bytes) -> None:
        was_idle = self.conn.their_state is h11.IDLE
        super().data_received(data)
        if was_idle and self.conn.their_state is not h11.IDLE:
            self.waits_since_s = monotonic()  # the headers are complete, the body may follow
            self.body_bytes = 0
        self.body_bytes += len(data)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self.waits_since_s = monotonic()

    @property
    def serving(self) -> bool:
        """Whether its request has arrived and its reply has not left."""
        return self.conn.their_state in (h11.DONE, h11.MUST_CLOSE, h11.CLOSED)

    @property
    def overdue(self) -> bool:
        """Whether it has owed the rest of a request for too long."""
        limit_s = limits.HTTP_REQUEST_S
        if self.conn.their_state is h11.SEND_BODY and self.conn.our_state is h11.DONE:
            limit_s = limits.LONGEST_FAREWELL_S  # answered: nobody reads the rest of the body
        elif self.conn.their_state is h11.SEND_BODY:
            limit_s += self.body_bytes / limits.HTTP_BODY_BYTES_PER_S
        return not self.serving and monotonic() - self.waits_since_s > limit_s


class HttpServer(uvicorn.Server):
    """Accepts connections itself; leaves signals to its process."""

    _listener: socket.socket
    _sweeper: asyncio.TimerHandle | None = None

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Do nothing: the process decides when to stop."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Like uvicorn's own, for one listening socket."""
        assert sockets is not None
        self.servers = []
        self._connecting: set[asyncio.Task[None]] = set()
        (self._listener,) = sockets
        self._listener.setblocking(False)
        self._loop = asyncio.get_running_loop()
        self._watch()
        self._sweep()
        self.started = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._loop.remove_reader(self._listener.fileno())
        if self._sweeper is not None:
            self._sweeper.cancel()
        for task in self._connecting:
            task.cancel()
        await super().shutdown(sockets)

    def _watch(self) -> None:
        self._loop.add_reader(self._listener.fileno(), self._accept)

    def _accept(self) -> None:
        for _ in range(_ACCEPTS):
            try:
                sock, address = self._listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                log.warning("cannot accept: %s", error.strerror)
                self._loop.remove_reader(self._listener.fileno())
                self._loop.call_later(0.1, self._watch)
                return
            self._admit(sock, str(address[0]))

    def _admit(self, sock: socket.socket, address: str) -> None:
        sock.setblocking(False)
        if not self._make_room(address):
            sock.close()
            return
        task = self._loop.create_task(self._connect(sock))
        self._connecting.add(task)
        task.add_done_callback(self._connecting.discard)

    def _make_room(self, address: str) -> bool:
        """Whether there is room, after closing a silent connection if necessary."""
        here = [one for one in self.server_state.connections if _address(one) == address]
        if len(here) >= limits.HTTP_CONNECTIONS_PER_ADDRESS:
            return _drop_most_silent(here)
        if len(self.server_state.connections) + len(self._connecting) >= limits.HTTP_CONNECTIONS:
            return _drop_most_silent(list(self.server_state.connections))
        return True

    async def _connect(self, sock: socket.socket) -> None:
        config = self.config
        tls: dict[str, Any] = {"ssl": config.ssl} if config.ssl else {}
        if tls:
            tls["ssl_handshake_timeout"] = limits.TLS_HANDSHAKE_S

        def connection() -> HttpConnection:
            return HttpConnection(config, self.server_state, self.lifespan.state)

        try:
            await self._loop.connect_accepted_socket(connection, sock, **tls)
        except OSError:  # TLS errors are among them
            sock.close()

    def _sweep(self) -> None:
        for connection in list(self.server_state.connections):
            if isinstance(connection, HttpConnection) and connection.overdue:
                connection.transport.abort()
        self._sweeper = self._loop.call_later(SWEEP_S, self._sweep)


def _address(connection: object) -> str | None:
    client = getattr(connection, "client", None)
    return client[0] if client else None


def _drop_most_silent(connections: list[Any]) -> bool:
    waiting = [one for one in connections if isinstance(one, HttpConnection) and not one.serving]
    if not waiting:
        return False
    min(waiting, key=lambda one: one.waits_since_s).transport.abort()
    return True
