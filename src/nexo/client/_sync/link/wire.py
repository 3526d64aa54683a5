"""One blocking connection of the sync client.

Timeouts are the kernel's (``SO_RCVTIMEO``): a Python socket timeout would cost one more
system call per read. A timeout leaves the connection usable, because a late reply is
recognised by its id and dropped (SPEC A6).
"""

from __future__ import annotations

import socket
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from struct import Struct
from typing import TYPE_CHECKING

from nexo.client.address import Address, door_path, tls_context
from nexo.client.connecting import is_final, no_welcome, pause_s, reason
from nexo.client.forks import on_fork
from nexo.client.replies import (
    MAX_REPLY_BYTES,
    MAX_WELCOME_BYTES,
    Reply,
    check_frame,
    control_answer,
    error_of,
    hello_frame,
)
from nexo.errors import (
    ConnectionLost,
    NexoError,
    NotLeader,
    PayloadTooLarge,
    RequestTimeout,
    ShuttingDown,
)
from nexo.model import Broker, Buffer
from nexo.protocol.frames import HEADER, HEADER_SIZE, FrameKind, Status
from nexo.protocol.hello import Welcome, decode_welcome

if TYPE_CHECKING:
    import ssl

    from nexo.client._sync.link.tls import TlsSocket

BUFFER_BYTES = 64 * 1024
_TRUSTED_IDLE_S = 0.5
_MAX_ID = 0xFFFFFFFF
_TIMEVAL = Struct("@ll")
_pack, _unpack = HEADER.pack, HEADER.unpack_from
_REQUEST, _RESPONSE = int(FrameKind.REQUEST), int(FrameKind.RESPONSE)
_OK, _NULL, _DATA = int(Status.OK), int(Status.NULL), int(Status.DATA)


class Wire:
    """A connection that said HELLO; one thread at a time reads from it."""

    def __init__(
        self, address: Address, broker: Broker, place: tuple[str, int] | None = None
    ) -> None:
        """``place`` is one of the address's servers; the first if it is not given."""
        self.address = address
        self.used_s = time.monotonic()
        self._buffer = bytearray(BUFFER_BYTES)
        self._view = memoryview(self._buffer)
        self._filled = 0
        self.next_id = 1
        self.cut = False
        """Whether nothing more can be sent: a frame is half written, or the server ends it."""
        self._timeout_s = 0.0
        self._max_frame = MAX_WELCOME_BYTES
        context = tls_context(address, broker) if address.tls else None
        if address.door_folder is None:
            self._socket = _connect_to(place or address.places[0], address, context)
        else:
            self._socket = _connect_door(door_path(address.door_folder, broker), address)
        on_fork(self)
        self._receive = self._socket.recv_into
        try:
            self.set_timeout(address.connect_timeout_s)
            self.welcome = self._hello(broker)
            self.set_timeout(address.timeout_s)
        except ConnectionLost as error:
            self.close()
            raise no_welcome(address, error) from None
        except BaseException:
            self.close()
            raise
        self._max_bytes, self._max_frame = self.welcome.max_payload_bytes, MAX_REPLY_BYTES
        self._idle_limit_s = self.welcome.idle_ping_ms / 1_000
        self.trusted_s = min(_TRUSTED_IDLE_S, self._idle_limit_s)
        """Unused for longer, it is to be checked before use."""

    def _hello(self, broker: Broker) -> Welcome:
        self.send(hello_frame(self.address, broker))
        return decode_welcome(self.reply(0) or b"")

    def set_timeout(self, timeout_s: float) -> None:
        """How long a read or write may block from now on."""
        if timeout_s != self._timeout_s:
            whole = int(timeout_s)
            span = _TIMEVAL.pack(whole, max(int((timeout_s - whole) * 1e6), 0 if whole else 1))
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, span)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, span)
            self._timeout_s = timeout_s

    def request(self, op: int, parts: tuple[Buffer, ...]) -> int:
        """Send a request; returns its id. `ShuttingDown` if the server has ended before."""
        try:
            return self.send_request(op, parts)
        except ConnectionLost:
            self._raise_if_parted()
            raise

    def send_request(self, op: int, parts: tuple[Buffer, ...]) -> int:
        """`request`, where another thread reads."""
        size = len(parts[0]) if len(parts) == 1 else sum(map(len, parts))
        if size > self._max_bytes:
            raise PayloadTooLarge(
                f"the request has {size} bytes; the server takes at most {self._max_bytes}"
            )
        request_id = self.next_id
        self.next_id = request_id % _MAX_ID + 1
        self.send(_pack(_REQUEST, op, request_id, size), *parts)
        return request_id

    def requests(self, op: int, payloads: Iterable[Buffer]) -> list[int]:
        """Send several small requests at once; returns their ids."""
        frames, ids = list[Buffer](), list[int]()
        for payload in payloads:
            frames += (_pack(_REQUEST, op, self.next_id, len(payload)), payload)
            ids.append(self.next_id)
            self.skip_id()
        try:
            self.send(*frames)
        except ConnectionLost:
            self._raise_if_parted()
            raise
        return ids

    def skip_id(self) -> None:
        """Move on to the next request id; 0 is HELLO's."""
        self.next_id = self.next_id % _MAX_ID + 1

    def send(self, *parts: Buffer) -> None:
        """Write whole frames; a failure breaks the connection, `RequestTimeout` too."""
        try:
            self._socket.sendall(b"".join(parts))
        except (BlockingIOError, TimeoutError):
            self.cut = True
            self.interrupt()
            limit = f"{self._timeout_s:g} s"
            raise RequestTimeout(f"{self.address} did not take the request in {limit}") from None
        except OSError as error:
            raise ConnectionLost(f"sending to {self.address} failed: {error}") from None

    def reply(self, request_id: int) -> Reply:
        """Read up to the response with this id; others are late ones and dropped."""
        if not self._filled:
            filled = self._fill()
            kind, meta, answered, length = _unpack(self._buffer)
            end = HEADER_SIZE + length
            if filled == end and answered == request_id and kind == _RESPONSE:
                self._filled = 0
                payload = self._view[HEADER_SIZE:end].tobytes()
                return payload if meta == _DATA else _result(meta, payload)
        return self._search(request_id)

    def _search(self, request_id: int) -> Reply:
        found: tuple[int, Buffer] | None = None
        deadline_s = time.monotonic() + self._timeout_s
        while found is None:
            if time.monotonic() > deadline_s:
                raise self._overdue()
            block, at = self.read_block(), 0
            while at < len(block):
                kind, meta, answered, length = _unpack(block, at)
                start, at = at + HEADER_SIZE, at + HEADER_SIZE + length
                if kind == _RESPONSE and answered == request_id:
                    found = meta, block[start:at]
                elif kind != _RESPONSE:
                    self.answer(kind, answered)
            if self.cut and found is None:
                raise self.parted()
        meta, payload = found
        return _result(meta, payload)

    def replies(self, request_ids: Sequence[int]) -> list[Reply | NexoError]:
        """Read the responses with these ids, in whatever order they come."""
        found: dict[int, Reply | NexoError] = {}
        waiting = set(request_ids)
        while waiting:
            block, at = self.read_block(), 0
            while at < len(block):
                kind, meta, answered, length = _unpack(block, at)
                start, at = at + HEADER_SIZE, at + HEADER_SIZE + length
                if kind != _RESPONSE:
                    self.answer(kind, answered)
                elif answered in waiting:
                    waiting.remove(answered)
                    try:
                        found[answered] = _result(meta, block[start:at])
                    except NexoError as error:
                        found[answered] = error
            if self.cut:
                found |= dict.fromkeys(waiting, self.parted())
                break
        return [found[each] for each in request_ids]

    def answer(self, kind: int, request_id: int) -> None:
        """See to a frame that is no response."""
        if kind == FrameKind.GOODBYE:
            self.cut = True
        elif answer := control_answer(kind, request_id):
            self.send(answer)

    def parted(self) -> ShuttingDown:
        """The error of a request without an answer when the server said goodbye."""
        return ShuttingDown(f"{self.address} is stopping; nothing was done")

    def _raise_if_parted(self) -> None:
        """Nothing can be sent: look whether the server said goodbye before it ended."""
        with suppress(ConnectionLost, RequestTimeout):
            while not self.cut:
                block, at = self.read_block(), 0
                while at < len(block):
                    kind, _, _, length = _unpack(block, at)
                    self.cut = self.cut or kind == FrameKind.GOODBYE
                    at += HEADER_SIZE + length
            raise self.parted()

    def read_block(self) -> bytes | memoryview:
        """Wait for at least one whole frame; returns all that are there."""
        while not (end := self._whole_frames()):
            self._fill()
        if end > BUFFER_BYTES:
            return self._hand_over(end)
        block = bytes(self._view[:end])
        self._filled -= end
        if self._filled:
            self._buffer[: self._filled] = self._buffer[end : end + self._filled]
        return block

    def _whole_frames(self) -> int:
        at, filled = 0, self._filled
        while filled - at >= HEADER_SIZE:
            end = at + HEADER_SIZE + _unpack(self._buffer, at)[3]
            if end > filled:
                check_frame(self.address, self._view[at:filled], self._max_frame)
                if not at and end > len(self._buffer):
                    self._grow(end)
                break
            at = end
        return at

    def _grow(self, size: int) -> None:
        larger = bytearray(size)
        larger[: self._filled] = self._view[: self._filled]
        self._buffer, self._view = larger, memoryview(larger)

    def _hand_over(self, end: int) -> memoryview:
        """A large frame leaves with its buffer, uncopied."""
        block, rest = self._view[:end], self._view[end : self._filled]
        self._buffer = bytearray(max(BUFFER_BYTES, len(rest)))
        self._buffer[: len(rest)] = rest
        self._view = memoryview(self._buffer)
        self._filled = len(rest)
        return block

    def _fill(self) -> int:
        try:
            received = self._receive(self._view[self._filled :] if self._filled else self._view)
        except (BlockingIOError, TimeoutError):
            raise self._overdue() from None
        except OSError as error:
            raise ConnectionLost(f"reading from {self.address} failed: {reason(error)}") from None
        if not received:
            raise ConnectionLost(
                f"{self.address} ended the connection before the reply; the"
                " request may or may not have run"
            )
        self._filled += received
        return self._filled

    def _overdue(self) -> RequestTimeout:
        return RequestTimeout(f"no reply from {self.address} within {self._timeout_s:g} s")

    def is_dead(self, idle_s: float) -> bool:
        """Whether the server ended this connection while it lay idle, or is about to.

        Nobody answers its pings meanwhile.
        """
        if idle_s >= self._idle_limit_s:
            return True
        try:
            return not self._socket.peek()
        except BlockingIOError:
            return False
        except OSError:
            return True

    def interrupt(self) -> None:
        """End the connection so that a thread reading from it wakes up."""
        self._socket.shut()

    def close(self) -> None:
        """Give the socket back."""
        self._socket.close()

    def __del__(self) -> None:
        if hasattr(self, "_socket"):  # it was connected
            self.close()

    def forked(self) -> None:
        """The connection is the parent's, which notices nothing."""
        self.close()


class PlainSocket(socket.socket):
    """A TCP socket with the two extras `Wire` needs."""

    def peek(self) -> bytes:
        """A byte that is already there; empty at the end, `BlockingIOError` if none came."""
        return self.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)

    def shut(self) -> None:
        """End both directions; closing alone would not wake a reader."""
        try:
            self.shutdown(socket.SHUT_RDWR)
        except OSError:
            return

    def __del__(self) -> None:
        self.close()  # the client has warned, and garbage ends in any order


def connect_any(address: Address, broker: Broker) -> Wire:
    """To the first server of the address that answers, and leads."""
    *others, last = address.places
    for place in others:
        with suppress(ConnectionLost, NotLeader):
            return Wire(address, broker, place)
    return Wire(address, broker, last)


def _connect_to(
    place: tuple[str, int], address: Address, context: ssl.SSLContext | None
) -> PlainSocket | TlsSocket:
    try:
        raw = socket.create_connection(place, address.connect_timeout_s)
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if context is not None:
            return _secured(context, raw, place[0])
        raw.settimeout(None)
        return PlainSocket(raw.family, raw.type, raw.proto, fileno=raw.detach())
    except OSError as error:  # TLS's are such
        raise ConnectionLost(f"cannot connect to {address}: {reason(error)}") from None


def _connect_door(path: str, address: Address) -> PlainSocket:
    try:
        raw = PlainSocket(socket.AF_UNIX, socket.SOCK_STREAM)
        raw.connect(path)
    except OSError as error:
        raise ConnectionLost(f"cannot connect to {address}: {reason(error)}") from None
    return raw


def _secured(context: ssl.SSLContext, raw: socket.socket, host: str) -> TlsSocket:
    from nexo.client._sync.link.tls import TlsSocket  # noqa: PLC0415 - imports ssl, which is slow

    return TlsSocket(context.wrap_socket(raw, server_hostname=host))


def _result(status: int, payload: Buffer) -> Reply:
    if status == _DATA:
        return payload  # type: ignore[return-value]  # blocks are bytes or memoryview
    if status == _OK:
        return b""
    if status == _NULL:
        return None
    raise error_of(status, payload)


def open_wire(address: Address, broker: Broker, timeout_s: float | None, *, was_up: bool) -> Wire:
    """Connect, trying again while the server is down if the address says so (SPEC A5)."""
    deadline_s = time.monotonic() + address.patience_s(timeout_s, was_up=was_up)
    failures = 0
    while True:
        try:
            return connect_any(address, broker)
        except NexoError as error:
            failures += 1
            wait_s = pause_s(failures, len(address.places))
            given_up = address.while_down == "fail" or time.monotonic() + wait_s > deadline_s
            if given_up or is_final(error, was_up=was_up):
                raise
        time.sleep(wait_s)
