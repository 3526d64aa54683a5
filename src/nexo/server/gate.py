"""Accepts connections and hands each to the process of the broker it is for.

The gate only peeks: the first bytes stay in the socket for the broker's process, and no
byte crosses the gate afterwards. A request's opcode, HELLO's broker field or the ALPN name
in a TLS ClientHello tells where a connection belongs.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable

from nexo.errors import ConfigError, ProtocolError
from nexo.model import Broker
from nexo.protocol.frames import HEADER_SIZE, Kind, Status, frame, pack_str
from nexo.protocol.ops import BROKER_OF, Op
from nexo.server.alpn import alpn_names

log = logging.getLogger("nexo.gate")

PEEK_BYTES = 16 * 1024
"""Room for a ClientHello with the large key shares of post-quantum exchanges."""
FIRST_BYTES_S = 10.0
RETRY_S = 0.01
LONGEST_RETRY_S = 1.0
BACKLOG = 1024
DEFAULT = Broker.STORE
_HELLO_BYTES = HEADER_SIZE + 2
_TLS_HANDSHAKE = 0x16


def route(first: bytes) -> Broker | None:
    """The broker a connection is for, or None while too little has arrived to tell.

    What makes no sense goes to the default broker, whose session refuses it properly.
    """
    if first[:1] == bytes((_TLS_HANDSHAKE,)):
        return _route_tls(first)
    if len(first) < 2:
        return None
    if first[0] != Kind.REQUEST or first[1] != Op.HELLO:
        return BROKER_OF[first[1]] or DEFAULT
    if len(first) < _HELLO_BYTES:
        return None
    number = first[_HELLO_BYTES - 1]
    return Broker(number) if number in set(Broker) else DEFAULT


def _route_tls(first: bytes) -> Broker | None:
    names = alpn_names(first)
    if names is None:
        return None
    by_name = {f"nexo-{broker.label}": broker for broker in Broker}
    return next((by_name[name] for name in names if name in by_name), DEFAULT)


def plain_refusal(first: bytes) -> bytes:
    """The answer to a request, begun with ``first``, that should have come over TLS."""
    error = ProtocolError("this server speaks TLS only: connect with nexos://")
    request_id = int.from_bytes(first[2:6], "big")
    if first[:2] == bytes((Kind.REQUEST, Op.HELLO)):
        coded = pack_str(error.code) + pack_str(error.message)
        return frame(Kind.RESPONSE, Status.ERR_CODED, request_id, coded)
    return frame(Kind.RESPONSE, Status.ERR, request_id, pack_str(error.message))


class Gate:
    """The listening socket. ``hand_over(broker, socket)`` takes each connection."""

    def __init__(
        self,
        listener: socket.socket,
        hand_over: Callable[[Broker, socket.socket], None],
        max_connections: int,
        *,
        tls: bool = False,
    ) -> None:
        """With ``tls`` nothing else is spoken."""
        self._tls = tls
        self._loop = asyncio.get_running_loop()
        self._listener = listener
        self._hand_over = hand_over
        self._max_waiting = max_connections
        self._waiting: set[socket.socket] = set()

    def open(self) -> None:
        """Start accepting."""
        self._listener.setblocking(False)
        self._loop.add_reader(self._listener.fileno(), self._accept)

    def close(self) -> None:
        """Stop accepting and drop connections that have said nothing yet."""
        self._loop.remove_reader(self._listener.fileno())
        self._listener.close()
        for sock in list(self._waiting):
            self._forget(sock)

    def _accept(self) -> None:
        for _ in range(64):
            try:
                sock, _ = self._listener.accept()
            except BlockingIOError:
                return
            except OSError as error:  # out of descriptors: serve who is here, try again
                log.warning("cannot accept: %s", error.strerror)
                self._loop.remove_reader(self._listener.fileno())
                self._loop.call_later(0.1, self.open)
                return
            self._welcome(sock)

    def _welcome(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        tune(sock)
        if len(self._waiting) >= self._max_waiting:
            sock.close()
            return
        self._waiting.add(sock)
        deadline = self._loop.time() + FIRST_BYTES_S
        self._loop.add_reader(sock.fileno(), self._peek, sock, deadline, RETRY_S)

    def _peek(self, sock: socket.socket, deadline: float, pause_s: float) -> None:
        if sock not in self._waiting:
            return
        try:
            first = sock.recv(PEEK_BYTES, socket.MSG_PEEK)
        except BlockingIOError:
            return
        except OSError:
            first = b""
        broker = route(first) if first else None
        if self._tls and first and first[0] != _TLS_HANDSHAKE:
            self._refuse_plain(sock, first)
        elif broker is not None:
            self._let_go(sock)
            self._hand_over(broker, sock)
        elif not first or self._loop.time() > deadline:
            self._forget(sock)
        else:  # too little to tell: a readable socket would call back without end
            self._loop.remove_reader(sock.fileno())
            later_s = min(LONGEST_RETRY_S, pause_s * 2)
            self._loop.call_later(pause_s, self._peek, sock, deadline, later_s)

    def _refuse_plain(self, sock: socket.socket, first: bytes) -> None:
        """Say so in the clear, for who speaks plain text would understand no alert of TLS."""
        log.info("a client did not speak TLS: closing")
        with contextlib.suppress(OSError):
            sock.send(plain_refusal(first))
            sock.shutdown(socket.SHUT_WR)
            sock.recv(PEEK_BYTES)  # unread, they would take the answer away
        self._forget(sock)

    def _let_go(self, sock: socket.socket) -> None:
        self._waiting.discard(sock)
        self._loop.remove_reader(sock.fileno())

    def _forget(self, sock: socket.socket) -> None:
        self._let_go(sock)
        sock.close()


def tune(sock: socket.socket) -> None:
    """Send at once, and find out within two minutes that a peer has vanished."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 60)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 15)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 4)


def listening_socket(host: str, port: int) -> socket.socket:
    """A bound, listening TCP socket; `ConfigError` if it cannot be had."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=BACKLOG, reuse_port=False)
    except OSError as error:
        raise ConfigError(f"cannot listen on {host}:{port}: {error.strerror}") from None
