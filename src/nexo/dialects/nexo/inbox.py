"""Cuts a connection's bytes into frames, reading large ones straight into their own buffer.

All sessions of a loop share one read buffer. An incomplete frame at the end of a read is copied,
so an idle connection holds no buffer at all.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import TypeAlias

from nexo.errors import PayloadTooLarge, ProtocolError
from nexo.protocol.frames import HEADER, HEADER_SIZE, FrameKind

LEAST_BYTES, GROWTH = 16 * 1024, 4
"""A large frame's buffer starts with `LEAST_BYTES` and grows to at most `GROWTH` times what has
arrived: bytes that are only announced take no memory.
"""

FrameSink: TypeAlias = Callable[[int, int, int, memoryview], None]
"""``sink(kind, meta, id, payload)``; the payload is only valid during the call."""

_KINDS = frozenset(map(int, FrameKind))
_unpack = Struct(">HII").unpack_from
"""A header with its type and meta byte in one number: most frames repeat the last one's."""


class Inbox:
    """One connection's incoming bytes. Sans-I/O: fill the buffer, say how much, get frames."""

    __slots__ = (
        "_kept", "_large", "_large_end", "_large_size", "_shared", "_sink", "_until", "count",
        "halted", "max_payload", "op", "refused", "runs",
    )  # fmt: skip

    def __init__(self, shared: memoryview, max_payload: int, sink: FrameSink) -> None:
        self._shared = shared
        self.max_payload = max_payload
        self._sink = sink
        self._kept = b""
        self._large: memoryview | None = None
        self._large_end = self._large_size = 0
        self._until = 0
        """Where the deliverable frames end; 0 while halted."""
        self.halted = False
        self.refused = 0
        """The id of the request that was too large."""
        self.op = self.count = 0
        """The meta byte of the last frame read, and how many in a row had it."""
        self.runs: list[tuple[int, int]] = []
        """The same of earlier runs of frames; empty after most reads."""

    def admit(self, shared: memoryview, max_payload: int) -> None:
        """The client has logged in: its frames may be larger, and so may its reads."""
        self._shared, self.max_payload = shared, max_payload

    @property
    def midway(self) -> bool:
        """Whether part of a frame has arrived and the rest has not."""
        return bool(self._kept) or self._large is not None

    def halt(self) -> None:
        """Keep what has arrived, from the next frame on, until `go_on` and ``received(0)``."""
        self.halted, self._until = True, 0

    def go_on(self) -> None:
        self.halted = False

    def buffer(self) -> memoryview:
        if self._large is not None:
            return self._large[self._large_end :]
        if not self._kept:
            return self._shared
        size = len(self._kept)
        self._shared[:size] = self._kept
        return self._shared[size:]

    def received(self, size: int) -> None:
        """``size`` more bytes are in the buffer: deliver every whole frame.

        Raises `PayloadTooLarge` or `ProtocolError` when the boundary of the next frame can
        no longer be trusted; the connection must then be closed.
        """
        self.count = 0
        if self.runs:
            self.runs = []
        if not self._kept and self._large is None and size:
            both, request_id, length = _unpack(self._shared)
            if length == size - HEADER_SIZE and length <= self.max_payload and not self.halted:
                kind, meta = both >> 8, both & 255
                if kind in _KINDS:  # one frame and no more, as most clients send
                    self._until = size
                    self._sink(kind, meta, request_id, self._shared[HEADER_SIZE:size])
                    self.op, self.count = meta, 1
                    return
        kept, self._kept = self._kept, b""
        if self._large is not None:
            self._large_received(size)
        elif size:
            self._cut(self._shared, len(kept) + size)
        else:
            self._cut(memoryview(kept), len(kept))

    def _cut(self, view: memoryview, end: int) -> None:
        at = count = kind = meta = 0
        last = -1
        sink, limit = self._sink, self.max_payload
        self._until = 0 if self.halted else end
        while self._until - at >= HEADER_SIZE:
            both, request_id, length = _unpack(view, at)
            if both != last:
                if count:
                    self.runs.append((meta, count))
                last, count = both, 0
                kind, meta = divmod(both, 256)
                if kind not in _KINDS:
                    raise self._refusal(kind, length)
            if length > limit:
                limit = self.max_payload  # a login may have raised it meanwhile
                if length > limit:
                    self.refused = request_id if kind == FrameKind.REQUEST else 0
                    raise self._refusal(kind, length)
            stop = at + HEADER_SIZE + length
            if stop > end:
                break
            count += 1
            sink(kind, meta, request_id, view[at + HEADER_SIZE : stop])
            at = stop
        self.op, self.count = meta, count
        if at < end:
            self._keep(view[at:end])

    def _keep(self, rest: memoryview) -> None:
        if len(rest) >= HEADER_SIZE and not self.halted:
            size = HEADER_SIZE + HEADER.unpack_from(rest)[3]
            if size > len(self._shared):
                self._start_large(rest, size)
                return
        self._kept = bytes(rest)

    def _start_large(self, rest: memoryview, size: int) -> None:
        self._large_size = size
        self._large_end = len(rest)
        self._large = memoryview(bytearray(min(size, max(LEAST_BYTES, GROWTH * len(rest)))))
        self._large[: len(rest)] = rest

    def _large_received(self, size: int) -> None:
        frame = self._large
        assert frame is not None
        self._large_end += size
        if self._large_end < len(frame):
            return
        if self._large_end < self._large_size:
            self._large = memoryview(bytearray(min(self._large_size, GROWTH * len(frame))))
            self._large[: len(frame)] = frame
            return
        self._large = None
        kind, meta, request_id, _ = HEADER.unpack_from(frame)
        self.op, self.count = meta, 1
        self._sink(kind, meta, request_id, frame[HEADER_SIZE:])

    def _refusal(self, kind: int, length: int) -> ProtocolError | PayloadTooLarge:
        if kind not in _KINDS:
            return ProtocolError(f"Unknown frame type: 0x{kind:02X}")
        return PayloadTooLarge(
            f"Payload of {length} bytes is too large: the limit is {self.max_payload}"
        )


class Drain:
    """Drops what still arrives on a connection that is being closed; replaces an `Inbox`."""

    __slots__ = ("_shared",)

    op = count = refused = 0
    runs: tuple[tuple[int, int], ...] = ()
    midway = halted = False

    def __init__(self, shared: memoryview) -> None:
        self._shared = shared

    def buffer(self) -> memoryview:
        return self._shared

    def received(self, size: int) -> None: ...

    def halt(self) -> None: ...

    def go_on(self) -> None: ...
