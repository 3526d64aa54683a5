"""The internal link: requests of a mixed connection that another broker's process serves.

One link per client and broker. Frames are forwarded as they are, ids included, so the order
per broker is kept and the other process sees the client as if it were connected there. Both
ways are flow-controlled: a client that does not read stops its links from reading, and a broker
that does not read stops its clients. If the other process dies, pending requests fail; if the
link carried subscriptions, the client's connection is closed, so that the client reconnects and
subscribes again instead of missing messages silently.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from secrets import token_hex
from typing import cast

from nexo.dialects.nexo.inbox import Inbox
from nexo.dialects.nexo.replying import ReplyingSession
from nexo.errors import NexoError, ShuttingDown, Unavailable
from nexo.model import Broker
from nexo.protocol import hello
from nexo.protocol.frames import FrameKind, frame
from nexo.protocol.ops import Op

_WITHOUT_REPLY = frozenset({Op.CANCEL})
_TOKEN_BYTES = 16
CONNECT_TRIES = 40
CONNECT_PAUSE_S = 0.05


class BrokerLink(asyncio.BufferedProtocol):
    """The link of one session to one other broker."""

    def __init__(
        self,
        client: ReplyingSession,
        broker: Broker,
        path: str,
        read_buffer: memoryview,
        buffer_bytes: int,
    ) -> None:
        """The client is held once more than ``buffer_bytes`` wait for the broker."""
        self._inbox = Inbox(read_buffer, 2**32 - 1, self._on_frame)
        self._client = client
        self._broker = broker
        self._buffer_bytes = buffer_bytes
        self.path = path
        self.token = token_hex(_TOKEN_BYTES)
        """By which the other process knows whom the link represents."""
        self.transport: asyncio.Transport | None = None
        self._early: list[bytes] = []
        self._early_bytes = 0
        self._pending: set[int] = set()
        self._holding = False
        self._pushing = False
        self.wanted = False
        """The client would rather live at the other end: `on_quiet` is called once it could."""
        self.on_quiet: Callable[[BrokerLink], None] = lambda _: None
        self.closed = False
        self._task: asyncio.Task[None] | None = None

    def open(self, introduction: hello.Hello) -> None:
        """Connect to the broker's process, and introduce the client."""
        asked = hello.encode_hello(self._broker, introduction)
        self._early.append(frame(FrameKind.REQUEST, Op.HELLO, 0, asked))
        self._task = asyncio.ensure_future(self._connect(self.path))

    def take(self, transport: asyncio.Transport, pending: set[int]) -> None:
        """Use a connection that is there already, on which requests are to be answered."""
        self.transport, self._pending = transport, pending
        transport.set_protocol(self)

    @property
    def pending(self) -> Iterable[int]:
        """The requests that are to be answered."""
        return self._pending

    @property
    def is_quiet(self) -> bool:
        """Whether nothing is under way, either way, and nothing comes unasked."""
        if self.transport is None or self.closed or self._pending or self._pushing:
            return False
        is_empty = not (self._holding or self._inbox.midway)
        return is_empty and not self.transport.get_write_buffer_size()

    async def _connect(self, path: str) -> None:
        for _ in range(CONNECT_TRIES):
            try:
                await asyncio.get_running_loop().create_unix_connection(lambda: self, path)
            except OSError:
                await asyncio.sleep(CONNECT_PAUSE_S)  # the broker's process is being restarted
            else:
                return
        self._lost()

    # -- the client's side --------------------------------------------------------

    def forward(self, op: int, request_id: int, payload: bytes) -> None:
        if op in _WITHOUT_REPLY:
            self._client.unanswered()
        else:
            self._pending.add(request_id)
        data = frame(FrameKind.REQUEST, op, request_id, payload)
        if self.transport is not None:
            self.transport.write(data)
            return
        self._early.append(data)
        self._early_bytes += len(data)
        if self._early_bytes > self._buffer_bytes:
            self._hold()

    def pause_reading(self) -> None:
        """The client does not read: stop reading replies for it."""
        if self.transport is not None:
            self.transport.pause_reading()

    def resume_reading(self) -> None:
        if self.transport is not None:
            self.transport.resume_reading()

    def close(self) -> None:
        """The client is gone."""
        self.closed = True
        if self._task is not None:
            self._task.cancel()
        if self.transport is not None:
            self.transport.close()

    def _hold(self) -> None:
        if not self._holding:
            self._holding = True
            self._client.hold()

    def _release(self) -> None:
        if self._holding:
            self._holding = False
            self._client.release()

    # -- asyncio's side -----------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast("asyncio.Transport", transport)  # uvloop's is none by inheritance
        if self.closed:
            transport.close()
            return
        transport.set_write_buffer_limits(high=self._buffer_bytes)
        early, self._early = self._early, []
        transport.writelines(early)
        self.transport = transport
        if self._client.congested:
            transport.pause_reading()
        if transport.get_write_buffer_size() <= self._buffer_bytes:
            self._release()

    def pause_writing(self) -> None:
        """The broker does not read: stop reading requests for it."""
        self._hold()

    def resume_writing(self) -> None:
        self._release()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._inbox.buffer()

    def buffer_updated(self, nbytes: int) -> None:
        """Pass replies and pushes back."""
        try:
            self._inbox.received(nbytes)
        except NexoError:
            self._lost()

    def _on_frame(self, kind: int, meta: int, request_id: int, payload: memoryview) -> None:
        if kind == FrameKind.PUSH:
            self._pushing = True
            self._client.push(frame(kind, meta, request_id, payload))
        elif kind == FrameKind.RESPONSE and request_id in self._pending:  # not to our HELLO
            self._pending.discard(request_id)
            self._client.relayed(frame(kind, meta, request_id, payload))
            if self.wanted and not self._pending:
                self.wanted = False
                self.on_quiet(self)
        elif kind == FrameKind.GOODBYE:
            self._fail_pending(ShuttingDown(f"the {self._broker.label} broker is stopping"))

    def connection_lost(self, exc: Exception | None) -> None:
        """The other process ended or closed."""
        if not self.closed:
            self._lost()

    def _lost(self) -> None:
        self.closed = True
        self._fail_pending(Unavailable(f"the {self._broker.label} broker is restarting; try again"))
        if self._pushing:
            self._client.finish()
        else:
            self._release()

    def _fail_pending(self, error: NexoError) -> None:
        pending, self._pending = self._pending, set()
        for request_id in pending:
            self._client.fail(request_id, error)
