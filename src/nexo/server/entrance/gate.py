"""Accepts connections and hands each to the process of the broker it is for.

The gate only peeks: the first bytes stay in the socket for the broker's process, and no byte
crosses the gate afterwards. Every dialect is asked in turn whether a connection is its own; for
TLS, the ALPN names in the ClientHello decide. A listener may be for one dialect alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

from nexo import limits
from nexo.config.settings import Settings
from nexo.dialects.dialect import Claim, Dialect
from nexo.errors import ConfigError, NexoError, ProtocolError
from nexo.model import Broker
from nexo.server.dialects import DIALECTS
from nexo.server.entrance.strangers import Strangers
from nexo.server.entrance.tls import alpn_names

log = logging.getLogger("nexo.gate")

PEEK_BYTES = 16 * 1024
"""Room for a ClientHello with the large key shares of post-quantum exchanges."""
RETRY_S = 0.01
LONGEST_RETRY_S = 1.0
WATCH_S = 0.5
BACKLOG = 1024
_TLS_HANDSHAKE = 0x16

DialectAndBroker: TypeAlias = tuple[Dialect, Broker]


@dataclass(frozen=True, slots=True)
class Listener:
    """A listening socket, and what is spoken there."""

    sock: socket.socket
    dialects: Sequence[Dialect] = DIALECTS
    tls: bool = False
    """Only TLS is spoken there."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """An accepted connection on its way to a broker."""

    sock: socket.socket
    dialect: str
    tls: bool


HandOver: TypeAlias = Callable[[Broker, Arrival], None]


def route(first: bytes, dialects: Sequence[Dialect] = DIALECTS) -> DialectAndBroker | None:
    """Whose connection begins with ``first``, or None while too little has arrived to tell.

    What nobody claims goes to the first dialect, whose session refuses it properly.
    """
    if first[0] == _TLS_HANDSHAKE:
        return _route_tls(first, dialects)
    undecided = False
    for dialect in dialects:
        claim = dialect.claim(first)
        if isinstance(claim, Broker):
            return dialect, claim
        undecided = undecided or claim is Claim.MORE
    return None if undecided else (dialects[0], dialects[0].home)


def _route_tls(first: bytes, dialects: Sequence[Dialect]) -> DialectAndBroker | None:
    names = alpn_names(first)
    if names is None:
        return None
    claims = ((dialect, dialect.claim_alpn(names)) for dialect in dialects)
    named = ((dialect, broker) for dialect, broker in claims if broker is not None)
    return next(named, (dialects[0], dialects[0].home))


class Gate:
    """The listening sockets. ``hand_over(broker, arrival)`` takes each connection."""

    def __init__(
        self, listeners: Sequence[Listener], hand_over: HandOver, settings: Settings
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._listeners = list(listeners)
        self._hand_over = hand_over
        self._most, self._most_of_one = settings.max_connections, settings.max_silent_connections
        self._may_be_silent = not settings.auth
        """Nobody needs to log in: who has connected may take its time to ask (SPEC R1)."""
        self._silent: Strangers[socket.socket] = Strangers(self._most_of_one)
        self._waiting: Strangers[socket.socket] = Strangers(self._most_of_one)
        """Those whose time runs."""
        self._dropped = 0
        self._watch: asyncio.TimerHandle | None = None

    def open(self) -> None:
        for listener in self._listeners:
            listener.sock.setblocking(False)
            self._listen(listener)
        self._watch_waiting()

    def close(self) -> None:
        """Stop accepting, and drop connections that are not handed over yet."""
        if self._watch is not None:
            self._watch.cancel()
        for listener in self._listeners:
            self._loop.remove_reader(listener.sock.fileno())
            listener.sock.close()
        self._listeners.clear()
        for sock in self._waiting.overdue(math.inf) + self._silent.overdue(math.inf):
            self._forget(sock)

    def _listen(self, listener: Listener) -> None:
        if listener in self._listeners:
            self._loop.add_reader(listener.sock.fileno(), self._accept, listener)

    def _accept(self, listener: Listener) -> None:
        for _ in range(64):
            try:
                sock, address = listener.sock.accept()
            except BlockingIOError:
                return
            except OSError as error:  # out of descriptors: serve who is here, try again
                log.warning("cannot accept: %s", error.strerror)
                self._loop.remove_reader(listener.sock.fileno())
                self._loop.call_later(0.1, self._listen, listener)
                return
            self._welcome(listener, sock, str(address[0]))

    def _welcome(self, listener: Listener, sock: socket.socket, address: str) -> None:
        sock.setblocking(False)
        try:
            tune(sock)
        except OSError as error:  # it is gone, or the system has no room: its client may try again
            log.info("a connection is closed that could not be set up: %s", error.strerror)
            sock.close()
            return
        entered = self._silent if self._may_be_silent and not listener.tls else self._waiting
        self._enter(entered, sock, address)
        if sock in entered:
            self._loop.add_reader(sock.fileno(), self._peek, listener, sock, RETRY_S)

    def _enter(self, where: Strangers[socket.socket], sock: socket.socket, address: str) -> None:
        """Add a connection; the oldest gives way if there are too many."""
        dropped = where.enter(sock, address, self._loop.time())
        if dropped is None and len(self._waiting) + len(self._silent) > self._most:
            dropped = self._silent.oldest or self._waiting.oldest
        if dropped is not None:
            self._forget(dropped)
            self._dropped += 1

    def _peek(self, listener: Listener, sock: socket.socket, pause_s: float) -> None:
        if sock not in self._waiting and sock not in self._silent:
            return
        try:
            first = sock.recv(PEEK_BYTES, socket.MSG_PEEK)
        except BlockingIOError:
            return
        except OSError:
            first = b""
        if not first:
            self._forget(sock)
        elif listener.tls and first[0] != _TLS_HANDSHAKE:
            self._refuse_plain(listener, sock)
        elif (found := route(first, listener.dialects)) is not None:
            self._let_go(sock)
            self._hand_over(found[1], Arrival(sock, found[0].name, listener.tls))
        else:  # too little to tell: a readable socket would call back without end
            self._loop.remove_reader(sock.fileno())
            if (address := self._silent.leave(sock)) is not None:
                self._enter(self._waiting, sock, address)
            again = partial(self._peek, listener, sock, min(LONGEST_RETRY_S, pause_s * 2))
            self._loop.call_later(pause_s, again)

    def _watch_waiting(self) -> None:
        """Close connections whose first bytes did not arrive in time."""
        for sock in self._waiting.overdue(self._loop.time() - limits.FIRST_BYTES_S):
            self._forget(sock)
        if self._dropped:
            log.warning(
                "closed %d connections that had said nothing yet: more than %d of one address "
                "(NEXO_MAX_SILENT_CONNECTIONS), or %d in all (NEXO_MAX_CONNECTIONS)",
                self._dropped, self._most_of_one, self._most,
            )  # fmt: skip
            self._dropped = 0
        self._watch = self._loop.call_later(WATCH_S, self._watch_waiting)

    def _refuse_plain(self, listener: Listener, sock: socket.socket) -> None:
        """Reject it in plain text: a client that speaks no TLS cannot read a TLS alert."""
        log.info("a client did not speak TLS: closing")
        self._let_go(sock)
        error = ProtocolError("this server speaks TLS only: connect with nexos://")
        refuse_plain(sock, listener.dialects[0], error)

    def _let_go(self, sock: socket.socket) -> None:
        self._waiting.leave(sock)
        self._silent.leave(sock)
        self._loop.remove_reader(sock.fileno())

    def _forget(self, sock: socket.socket) -> None:
        self._let_go(sock)
        sock.close()


def refuse_plain(sock: socket.socket, dialect: Dialect, error: NexoError) -> None:
    """Answer the first request of a connection with an error, without TLS, and close it."""
    with contextlib.suppress(OSError):
        first = sock.recv(PEEK_BYTES)  # closing with unread data would send RST
        sock.send(dialect.refusal(first, error))
        sock.shutdown(socket.SHUT_WR)
    sock.close()


def tune(sock: socket.socket) -> None:
    """Send at once, and find out within two minutes that a peer has vanished."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 60)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 15)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 4)


def listening_socket(host: str, port: int) -> socket.socket:
    """A bound, listening TCP socket; `ConfigError` if the address is taken or not allowed."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=BACKLOG, reuse_port=False)
    except OSError as error:
        raise ConfigError(f"cannot listen on {host}:{port}: {error.strerror}") from None
