"""A server at the socket's other end that does what a test tells it to.

It answers HELLO and ECHO, keeps every other request for the test to answer, and can push,
ping, fall silent, cut connections and come back on the same port.
"""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, TypeVar

from nexo.model import Broker
from nexo.protocol.frames import HEADER, HEADER_SIZE, FrameKind, Status, frame, pack_str
from nexo.protocol.hello import Welcome, decode_hello
from nexo.protocol.messages import pack
from nexo.protocol.ops import Op

T = TypeVar("T")

HOLD_OP = 0xF8
"""Never answered by itself."""
FAIL_OP = 0xF9
"""Payload ``status u8`` and the error's payload: answered with exactly that."""
_TURNS = 5
SIZED_OP = 0xFA
"""Payload ``size u32``: answered with that many bytes."""


class ScriptedServer:
    """Runs in a thread with a loop of its own; a context manager."""

    def __init__(self, welcome: Welcome | None = None, tls: ssl.SSLContext | None = None) -> None:
        self.tls = tls
        self.alpn: deque[str | None] = deque()
        self.welcome = welcome or Welcome(server="test", max_payload_bytes=1 << 20)
        self.hellos: deque[tuple[Broker, str | None]] = deque()
        self.held: deque[tuple[_Peer, int, bytes]] = deque()
        self.cancelled: deque[int] = deque()
        self.pongs: deque[int] = deque()
        self.reject: bytes | None = None
        self.answers_pings = True
        self.port = 0
        self._change = threading.Condition()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._server: asyncio.Server | None = None
        self._peers: set[_Peer] = set()

    def __enter__(self) -> ScriptedServer:
        self._thread.start()
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    @property
    def url(self) -> str:
        return f"{'nexos' if self.tls else 'nexo'}://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Listen, again on the port of the first time."""
        self._do(self._start())

    async def _start(self) -> None:
        self._server = await self._loop.create_server(
            lambda: _Peer(self), "127.0.0.1", self.port, reuse_address=True, ssl=self.tls
        )
        self.port = self._server.sockets[0].getsockname()[1]

    def stop(self, last: bytes = b"") -> None:
        """Stop listening and cut every connection, after these ``last`` bytes."""
        self._do(self._stop(last))

    async def _stop(self, last: bytes) -> None:
        if self._server is not None:
            self._server.close()
        for _ in range(_TURNS):  # some may just have been accepted
            for peer in list(self._peers):
                peer.transport.write(last)
                peer.transport.abort()
            await asyncio.sleep(0)

    def wait_for(self, condition: Callable[[], object]) -> None:
        """Wait until something that this server notes makes ``condition`` true."""
        with self._change:
            assert self._change.wait_for(condition, timeout=10), "it never happened"

    def answer(self, payload: bytes = b"", status: int = Status.DATA) -> None:
        """Answer the oldest request that is held."""
        self.wait_for(lambda: self.held)
        peer, request_id, _ = self.held.popleft()
        self.write(frame(FrameKind.RESPONSE, status, request_id, payload), peer)

    def write(self, data: bytes, peer: _Peer | None = None) -> None:
        """Send bytes as they are, to one peer or to all."""

        async def write() -> None:
            for each in [peer] if peer else list(self._peers):
                each.transport.write(data)

        self._do(write())

    def pause_reading(self) -> None:
        """Take nothing more from those who are connected now."""

        async def pause() -> None:
            for peer in self._peers:
                peer.transport.pause_reading()

        self._do(pause())

    def resume_reading(self) -> None:
        """Take it again."""

        async def resume() -> None:
            for peer in self._peers:
                peer.transport.resume_reading()

        self._do(resume())

    def note(self) -> None:
        with self._change:
            self._change.notify_all()

    def _do(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(10)


class _Peer(asyncio.Protocol):
    def __init__(self, server: ScriptedServer) -> None:
        self.server = server
        self.data = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.server._peers.add(self)
        if secured := transport.get_extra_info("ssl_object"):
            self.server.alpn.append(secured.selected_alpn_protocol())

    def connection_lost(self, exc: Exception | None) -> None:
        self.server._peers.discard(self)

    def data_received(self, data: bytes) -> None:
        self.data += data
        at, out = 0, []
        while len(self.data) - at >= HEADER_SIZE:
            kind, meta, request_id, length = HEADER.unpack_from(self.data, at)
            end = at + HEADER_SIZE + length
            if end > len(self.data):
                break
            out.append(self.one(kind, meta, request_id, self.data[at + HEADER_SIZE : end]))
            at = end
        self.data = self.data[at:]
        self.transport.write(b"".join(out))
        self.server.note()

    def one(self, kind: int, op: int, request_id: int, payload: bytes) -> bytes:
        if kind == FrameKind.PING and self.server.answers_pings:
            return frame(FrameKind.PONG, 0, request_id)
        if kind == FrameKind.PONG:
            self.server.pongs.append(request_id)
        if kind != FrameKind.REQUEST:
            return b""
        if op == Op.CANCEL:
            return self.cancel(int.from_bytes(payload[1:], "big"))
        reply = self.reply(op, payload)
        if reply is None:
            self.server.held.append((self, request_id, payload))
            return b""
        status, body = reply
        return frame(FrameKind.RESPONSE, status, request_id, body)

    def reply(self, op: int, payload: bytes) -> tuple[int, bytes] | None:
        if op == Op.ECHO:
            return Status.DATA, payload
        if op == Op.HELLO:
            return self.hello(payload)
        if op == FAIL_OP:
            return payload[0], payload[1:]
        if op == SIZED_OP:
            return Status.DATA, b"x" * int.from_bytes(payload, "big")
        return None

    def hello(self, payload: bytes) -> tuple[int, bytes]:
        broker, hello = decode_hello(payload)
        self.server.hellos.append((broker, hello.user))
        if self.server.reject is not None:
            return Status.ERR_CODED, self.server.reject
        return Status.DATA, pack(self.server.welcome)

    def cancel(self, request_id: int) -> bytes:
        self.server.cancelled.append(request_id)
        for entry in self.server.held:
            if entry[0] is self and entry[1] == request_id:
                self.server.held.remove(entry)
                return frame(FrameKind.RESPONSE, Status.DATA, request_id)
        return b""


def coded(code: str, message: str) -> bytes:
    """The payload of a coded error."""
    return pack_str(code) + pack_str(message)
