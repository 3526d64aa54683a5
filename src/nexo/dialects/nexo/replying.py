"""The replies of one connection: gathered, and written together at the end of a loop turn."""

from __future__ import annotations

from nexo.dialects.dialect import Origin
from nexo.dialects.nexo.meter import Meter
from nexo.dialects.nexo.state import NexoState
from nexo.dialects.session import BaseSession
from nexo.errors import ConnectionLost, NexoError
from nexo.model import Buffer
from nexo.protocol.frames import HEADER, FrameKind, Status, frame, pack_error, pack_str

JOIN_BYTES = 64 * 1024
"""Replies up to this size are joined into one write; larger ones are written in parts."""

SMALL_BYTES = 256
"""A reply up to this size is one part with its header."""

EARLY_PARTS = 24
"""Send this many parts of replies before the rest of a run of requests is served, so that the
peer has something to work on.
"""
EARLY_BYTES = 8 * 1024
"""A part of this size is also sent early."""

# Plain numbers: looking up an enum member costs as much as packing a header.
_RESPONSE = int(FrameKind.RESPONSE)
_OK, _NULL, _DATA = int(Status.OK), int(Status.NULL), int(Status.DATA)
_pack = HEADER.pack


class ReplyingSession(BaseSession):
    """Implements the replies of `nexo.dialects.nexo.handlers.Peer`.

    Everything sent in one turn of the loop leaves in one write.
    """

    __slots__ = (
        "_in_flight", "_meter", "_out", "_postponed", "_replying", "_state", "_touched",
        "said_hello",
    )  # fmt: skip

    def __init__(self, state: NexoState, origin: Origin) -> None:
        super().__init__(state.host, origin)
        self._state = state
        self._meter = Meter(state.timings)
        self._out: list[Buffer] = []
        self._touched = False
        """Will be flushed at the end of this turn."""
        self._postponed = False
        """More waits to be flushed than may wait: it counts as congested."""
        self._replying = False
        """Requests are being run; their replies are flushed after them."""
        self._in_flight = 0
        self.said_hello = False

    def connection_lost(self, exc: Exception | None) -> None:
        """Drop what was not sent."""
        self._out.clear()
        self._meter.waiting.clear()
        super().connection_lost(exc)

    def ok(self, request_id: int) -> None:
        self._in_flight -= 1
        if self._replying or self.closed:
            self._send(_pack(_RESPONSE, _OK, request_id, 0))
        else:
            self._out.append(_pack(_RESPONSE, _OK, request_id, 0))
            self._late(request_id)

    def null(self, request_id: int) -> None:
        self._in_flight -= 1
        self._send(_pack(_RESPONSE, _NULL, request_id, 0), request_id)

    def data(self, request_id: int, *parts: Buffer) -> None:
        self._in_flight -= 1
        if self.closed:
            return
        out = self._out
        if len(parts) == 1 and (size := len(parts[0])) <= SMALL_BYTES:
            out.append(_pack(_RESPONSE, _DATA, request_id, size) + parts[0])
        else:
            size = sum(map(len, parts))
            out.append(_pack(_RESPONSE, _DATA, request_id, size))
            out += parts
        if not self._replying:
            self._late(request_id)
        if size >= EARLY_BYTES or (self._replying and len(out) >= EARLY_PARTS):
            self.flush()

    def fail(self, request_id: int, error: NexoError) -> None:
        """Reply with an error, coded for clients that said HELLO."""
        self._in_flight -= 1
        if self.said_hello:
            payload, status = pack_error(error), Status.ERR_CODED
        else:
            payload, status = pack_str(error.message), Status.ERR
        self._send(frame(FrameKind.RESPONSE, status, request_id, payload), request_id)

    def push(self, frames: Buffer) -> None:
        if self._replying or self.closed:
            self._send(frames)
            return
        self._out.append(frames)  # as `_send` does, but inlined: thousands may get a message
        if not self._touched:
            self._touched = True
            self._state.touched(self)

    def relayed(self, reply: Buffer) -> None:
        """Pass on a whole reply that another process gave."""
        self._in_flight -= 1
        self._send(reply)

    def unanswered(self) -> None:
        self._in_flight -= 1

    def _send(self, data: Buffer, request_id: int = -1) -> None:
        if not self.closed:
            self._out.append(data)
            if not self._replying:
                self._late(request_id)
            elif len(self._out) >= EARLY_PARTS or len(data) >= EARLY_BYTES:
                self.flush()

    def _late(self, request_id: int) -> None:
        """A reply may belong to a request that waited: flush it with this turn."""
        if self._meter.waiting:
            self._meter.answered(request_id)
        if not self._touched:
            self._touched = True
            self._state.touched(self)

    def flush(self) -> int:
        """Write what is gathered; returns its bytes."""
        self._touched = False
        out = self._out
        if not out or self.closed:
            return 0
        self._out = []
        if self._postponed:
            self._host.loop.call_soon(self._caught_up)
        if len(out) == 1:
            size = len(out[0])
            self._meter.bytes_out += size
            self._transport.write(out[0])
            return size
        size = sum(map(len, out))
        self._meter.bytes_out += size
        if size > JOIN_BYTES:
            self._transport.writelines(out)
        else:
            self._transport.write(b"".join(out))
        return size

    def postponed(self) -> None:
        """Others are flushed before: what waits meanwhile is bounded as in the transport."""
        if not self.congested and sum(map(len, self._out)) > self._most_unsent:
            self.pause_writing()
            self._postponed = True

    def pause_writing(self) -> None:
        self._postponed = False
        super().pause_writing()

    def _caught_up(self) -> None:
        """All is with the transport, which has its own bound."""
        if self._postponed and not self.closed:
            self._postponed = False
            self.resume_writing()

    @property
    def _most_unsent(self) -> int:
        return self._host.settings.write_buffer_bytes

    def _answered(self, request_id: int, reply: bytes | None) -> None:
        """Like `handler_of` an answer, without the extra call."""
        self._in_flight -= 1
        out = self._out
        if reply:
            out.append(_pack(_RESPONSE, _DATA, request_id, len(reply)))
            out.append(reply)
        else:
            out.append(_pack(_RESPONSE, _NULL if reply is None else _OK, request_id, 0))
        if len(out) >= EARLY_PARTS:
            self.flush()

    def _say_goodbye(self) -> None:
        """Answer what has run without a reply; what is unanswered then has not run.

        Nothing is said if more has run than is known here.
        """
        unknown = ConnectionLost(
            "the server stopped before the reply; the request may or may not have run"
        )
        for request_id in list(self._meter.waiting):
            self.fail(request_id, unknown)
        if not self._in_flight:
            self._client_leaves = True
            self._send(frame(FrameKind.GOODBYE, 0, 0))

    def refuse(self, error: NexoError, request_id: int = 0) -> None:
        """Reject the connection, as when the next frame's boundary is unknown: say why, close."""
        self._in_flight += 1
        self.fail(request_id, error)
        self.finish()
