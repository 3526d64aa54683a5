"""Lets a connection that mixes brokers live where most of its requests are run.

Such a connection begins with the broker of its first request; requests for others are relayed,
which costs more than twice as much as running them. When most of them go over one link, the two
ends of the link change places: the other process gets the client's socket, and the session that
had represented the client there becomes its own. The session that had it goes on at its end of
the link, with all that it holds, and represents the client from now on.

That is only done in a moment in which nothing is under way: no request over that link is
unanswered, no part of a frame has arrived, and everything has been written. So nothing can be
lost or change its order. What the client sends meanwhile waits in the socket. Requests that wait
where the client was, such as long polls, are answered over the link.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol, cast

import msgspec

from nexo.dialects.nexo.link import BrokerLink
from nexo.dialects.nexo.movable import ClientMove, Stand, Unwritten
from nexo.model import Broker
from nexo.protocol.messages import pack

WINDOW = 64
"""So many relayed requests are looked at together."""
SHARE = 0.6
"""A connection moves if more than this part of its requests went over one link."""
MOST_WAITING = 1_000
"""A connection with more unanswered requests stays."""
_MESSAGE_BYTES = 64 * 1024


_decode = msgspec.msgpack.Decoder(ClientMove).decode


def moves_path(link_path: str) -> str:
    """The unix socket on which a process takes connections over."""
    return link_path + ".moves"


class Whereabouts:
    """How the requests of one connection are spread; asks to move it when they are not at home."""

    __slots__ = ("_link", "_relayed", "_requests")

    def __init__(self) -> None:
        self._link: BrokerLink | None = None
        self._relayed = self._requests = 0

    def relayed(self, link: BrokerLink, requests: int) -> bool:
        """Count a relayed request of a connection that has sent so many; whether to move."""
        if link is not self._link:
            self._link, self._relayed, self._requests = link, 0, requests
        self._relayed += 1
        if self._relayed < WINDOW:
            return False
        is_most = self._relayed > SHARE * (requests - self._requests + 1)
        if not is_most or self._relayed >= 2 * WINDOW:
            self._link = None
        return is_most


class Leaving(Protocol):
    """A session with a client that may live elsewhere."""

    name: str
    address: str

    @property
    def transport(self) -> asyncio.Transport:
        """The client's connection."""

    def waiting(self) -> list[int] | None:
        """The requests that wait for an answer; None if the connection cannot move now."""

    def reached_without(self, link: BrokerLink) -> list[Broker]:
        """The brokers here, and those that have a link, but for one."""

    def live_on(self, link: BrokerLink) -> None:
        """The client has moved to the other end of a link."""


# -- giving -----------------------------------------------------------------------------


def give(session: Leaving, link: BrokerLink) -> None:
    """Let a session and the one at the other end of its link change places, if they can."""
    waiting = session.waiting()
    if waiting is None or not link.is_quiet or len(waiting) > MOST_WAITING:
        return
    reached = session.reached_without(link)
    move = ClientMove(link.token, reached, session.name, session.address, waiting)
    client = session.transport
    client.pause_reading()
    if not _send(link.path, pack(move), client):
        client.resume_reading()
        return
    client.set_protocol(asyncio.Protocol())
    client.abort()  # the other process has the socket: this closes a copy
    session.live_on(link)


def _send(path: str, message: bytes, client: asyncio.Transport) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
        channel.setblocking(False)
        try:
            channel.connect(moves_path(path))
            descriptor = client.get_extra_info("socket").fileno()
            return socket.send_fds(channel, [message], [descriptor]) == len(message)
        except OSError:
            return False


# -- taking -----------------------------------------------------------------------------


class Moves:
    """Takes over the connections that other processes of the server give."""

    def __init__(self, path: str, find: Callable[[str], Stand | None]) -> None:
        """``find`` gives the session that represents a client, by its token."""
        self._loop = asyncio.get_running_loop()
        self._path, self._find = moves_path(path), find
        self._tasks: set[asyncio.Task[None]] = set()
        self._channel = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._channel.setblocking(False)
        with suppress(FileNotFoundError):
            os.unlink(self._path)  # noqa: PTH108 - an address, as for `bind`
        self._channel.bind(self._path)
        self._loop.add_reader(self._channel.fileno(), self._arrived)

    def close(self) -> None:
        """Take no more; who is on the way finds the door closed, and connects anew."""
        self._loop.remove_reader(self._channel.fileno())
        self._channel.close()

    def _arrived(self) -> None:
        try:
            message, descriptors, _, _ = socket.recv_fds(self._channel, _MESSAGE_BYTES, 1)
        except OSError:
            return
        for descriptor in descriptors:
            sock = socket.socket(fileno=descriptor)
            sock.setblocking(False)
            move = _decode(message)
            session = self._find(move.token)
            if session is None:
                sock.close()
                continue
            waits = session.take_place(move)
            task = self._loop.create_task(self._adopt(session, waits, sock))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _adopt(self, session: Stand, waits: Unwritten, sock: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(lambda: _Arrival(session, waits), sock)
        except OSError:
            sock.close()
            session.connection_lost(None)


class _Arrival(asyncio.Protocol):
    """Receives the transport of a socket, and gives it to its session."""

    def __init__(self, session: Stand, waits: Unwritten) -> None:
        self._session, self._waits = session, waits

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast("asyncio.Transport", transport)
        self._session.arrive(transport, self._waits)


def is_plain(transport: asyncio.Transport) -> bool:
    """Whether a connection is TCP without TLS, which has a state of its own."""
    sock = transport.get_extra_info("socket")
    is_tcp = sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6)
    return is_tcp and transport.get_extra_info("ssl_object") is None
