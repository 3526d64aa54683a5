"""Requests for another broker on a mixed connection: one internal link per client and broker.

Frames are forwarded as they are, ids included, so order per broker is kept and the other
process sees the client as if it were connected there. A link whose process dies fails what
is pending; if it carried subscriptions, the client's connection is closed so that the client
reconnects and subscribes again instead of silently missing messages.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, cast

from nexo.dialects.nexo.inbox import Inbox
from nexo.errors import NexoError, Unavailable
from nexo.model import Broker
from nexo.protocol import hello
from nexo.protocol.frames import Kind, frame
from nexo.protocol.ops import Op

if TYPE_CHECKING:
    from nexo.dialects.nexo.session import Session
    from nexo.server.host import Host

_WITHOUT_REPLY = frozenset({Op.CANCEL})
CONNECT_TRIES = 40
CONNECT_PAUSE_S = 0.05


class Relay(asyncio.BufferedProtocol):
    """The link of one session to one other broker."""

    def __init__(self, host: Host, session: Session, broker: Broker) -> None:
        self._inbox = Inbox(host.read_buffer, 2**32 - 1, self._on_frame)
        self._session = session
        self._broker = broker
        self._transport: asyncio.Transport | None = None
        self._early: list[bytes] = [frame(Kind.REQUEST, Op.HELLO, 0, self._introduction())]
        self._pending: set[int] = set()
        self._pushing = False
        self.closed = False
        self._task = asyncio.ensure_future(self._connect(host))

    def _introduction(self) -> bytes:
        session = self._session
        user = session.identity.user.name if session.identity else None
        speaker = hello.Hello(client=session.name, user=user, coded=session.coded)
        return hello.encode_hello(self._broker, speaker)

    async def _connect(self, host: Host) -> None:
        path = host.relay_path(self._broker)
        for _ in range(CONNECT_TRIES):
            try:
                await asyncio.get_running_loop().create_unix_connection(lambda: self, path)
            except OSError:
                await asyncio.sleep(CONNECT_PAUSE_S)  # the broker's process is being restarted
            else:
                return
        self._lost()

    def forward(self, op: int, request_id: int, payload: bytes) -> None:
        """Pass a request on."""
        if op in _WITHOUT_REPLY:
            self._session.unanswered()
        else:
            self._pending.add(request_id)
        data = frame(Kind.REQUEST, op, request_id, payload)
        if self._transport is None:
            self._early.append(data)
        else:
            self._transport.write(data)

    def close(self) -> None:
        """The client is gone."""
        self.closed = True
        self._task.cancel()
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send what has gathered."""
        transport = cast("asyncio.Transport", transport)  # uvloop's is none by inheritance
        self._transport = transport
        if self.closed:
            transport.close()
            return
        transport.writelines(self._early)
        self._early.clear()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where the transport reads to."""
        return self._inbox.buffer()

    def buffer_updated(self, nbytes: int) -> None:
        """Pass replies and pushes back."""
        try:
            self._inbox.received(nbytes)
        except NexoError:
            self._lost()

    def _on_frame(self, kind: int, meta: int, request_id: int, payload: memoryview) -> None:
        if kind == Kind.PUSH:
            self._pushing = True
            self._session.push(frame(kind, meta, request_id, payload))
        elif kind == Kind.RESPONSE and request_id in self._pending:  # else to the introduction
            self._pending.discard(request_id)
            self._session.relayed(frame(kind, meta, request_id, payload))

    def connection_lost(self, exc: Exception | None) -> None:
        """The other process ended or closed."""
        if not self.closed:
            self._lost()

    def _lost(self) -> None:
        self.closed = True
        pending, self._pending = self._pending, set()
        for request_id in pending:
            message = f"the {self._broker.label} broker is restarting; try again"
            self._session.fail(request_id, Unavailable(message))
        if self._pushing:
            self._session.finish()
