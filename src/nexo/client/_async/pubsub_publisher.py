"""Sends messages: those of one loop turn leave as one run with one reply for all.

The sync twin, written by hand, sends each by itself.
"""

from __future__ import annotations

import asyncio
from struct import unpack

from nexo.client._async.connection import Link
from nexo.client._async.gathering import Gathering
from nexo.client.pubsub_message import SteadyClock
from nexo.client.replies import Reply
from nexo.protocol.ops import Op
from nexo.protocol.pubsub import RUN_BYTES, Publish, message_frame, pack_publish


class Publisher:
    """Gathers messages; their order is kept, also between retained and plain ones."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self.clock = SteadyClock()
        self._run: _Run | None = None
        self._last: asyncio.Future[Reply] | None = None

    async def drain(self) -> None:
        """Wait until everything sent so far was answered, well or not."""
        self.flush()
        if self._last is not None:
            await asyncio.wait({self._last})

    def send(
        self, topic: bytes, value: bytes, options: Publish | None = None
    ) -> asyncio.Future[int]:
        """Publish one message; await the result for the number of receivers."""
        run = self._run
        if run is None or run.options != options:
            run = self._begin(options)
        frame = message_frame(topic, value, run.timestamp_ms)
        run.frames.append(frame)
        run.size_bytes += len(frame)
        receipt = run.gathering.receipt()
        if run.size_bytes >= RUN_BYTES:
            self.flush()
        return receipt

    def _begin(self, options: Publish | None) -> _Run:
        self.flush()
        run = self._run = _Run(options, self.clock.now_ms())
        asyncio.get_running_loop().call_soon(self._end_of_turn, run)
        return run

    def _end_of_turn(self, run: _Run) -> None:
        if run is self._run:
            self.flush()

    def flush(self) -> None:
        """Send what was gathered, without waiting for the end of the turn."""
        run, self._run = self._run, None
        if run is None:
            return
        self._last = run.gathering.send(self._link, *_request(run.options, b"".join(run.frames)))

    def call(self, frames: bytes, options: Publish | None) -> asyncio.Future[Reply]:
        """Send whole frames as one request."""
        return self._link.call(*_request(options, frames))


def _request(options: Publish | None, frames: bytes) -> tuple[Op, *tuple[bytes, ...]]:
    if options is None:
        return Op.PUBLISH_RUN, frames
    return Op.PUBLISH, pack_publish(options), frames


class _Run:
    """Messages that share one request."""

    __slots__ = ("frames", "gathering", "options", "size_bytes", "timestamp_ms")

    def __init__(self, options: Publish | None, timestamp_ms: int) -> None:
        self.options = options
        self.timestamp_ms = timestamp_ms
        self.frames: list[bytes] = []
        self.size_bytes = 0
        self.gathering: Gathering[int] = Gathering(_receivers)


def _receivers(reply: Reply) -> tuple[int, ...]:
    counts = reply or b""
    return unpack(f">{len(counts) // 4}I", counts)
