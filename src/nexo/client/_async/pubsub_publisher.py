"""Sends messages: those of one loop turn leave as one run with one reply for all.

The sync twin, written by hand, sends each by itself.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Generator

from nexo.client._async.connection import Link
from nexo.client.pubsub_message import SteadyClock
from nexo.client.replies import Reply
from nexo.errors import NexoError
from nexo.protocol.ops import Op
from nexo.protocol.pubsub import RUN_BYTES, Publish, message_frame, pack_publish

log = logging.getLogger("nexo.client")


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

    def send(self, topic: bytes, value: bytes, options: Publish | None = None) -> Receipt:
        """Publish one message; await the result for the number of receivers."""
        run = self._run
        if run is None or run.options != options:
            run = self._begin(options)
        frames = run.frames
        receipt = Receipt(run, len(frames))
        frame = message_frame(topic, value, run.timestamp_ms)
        frames.append(frame)
        run.size_bytes += len(frame)
        if run.size_bytes >= RUN_BYTES:
            self.flush()
        return receipt

    def _begin(self, options: Publish | None) -> _Run:
        self.flush()
        run = self._run = _Run(asyncio.get_running_loop(), options, self.clock.now_ms())
        run.loop.call_soon(self._end_of_turn, run)
        return run

    def _end_of_turn(self, run: _Run) -> None:
        if run is self._run:
            self.flush()

    def flush(self) -> None:
        """Send what was gathered, without waiting for the end of the turn."""
        run, self._run = self._run, None
        if run is None:
            return
        try:
            reply = self.call(b"".join(run.frames), run.options)
        except NexoError as error:
            run.fail(error)
        else:
            reply.add_done_callback(run.answered)
            self._last = reply

    def call(self, frames: bytes, options: Publish | None) -> asyncio.Future[Reply]:
        """Send whole frames as one request."""
        if options is None:
            return self._link.call(Op.PUBLISH_RUN, frames)
        return self._link.call(Op.PUBLISH, pack_publish(options), frames)


class _Run:
    """Messages that share one request, and who waits for its reply."""

    __slots__ = (
        "_error", "_receivers", "_waiting", "frames", "loop", "options", "size_bytes",
        "timestamp_ms",
    )  # fmt: skip

    def __init__(
        self, loop: asyncio.AbstractEventLoop, options: Publish | None, timestamp_ms: int
    ) -> None:
        self.loop = loop
        self.options = options
        self.timestamp_ms = timestamp_ms
        self.frames: list[bytes] = []
        self.size_bytes = 0
        self._waiting: list[tuple[asyncio.Future[int], int]] | None = []
        self._receivers: Reply = None
        self._error: BaseException | None = None

    def answered(self, reply: asyncio.Future[Reply]) -> None:
        """Give everyone who waits their number."""
        if reply.cancelled():
            self.fail(asyncio.CancelledError())
        elif (error := reply.exception()) is not None:
            self.fail(error)
        else:
            self._receivers = reply.result()
            for future, index in self._end():
                if not future.done():
                    future.set_result(self._count(index))

    def fail(self, error: BaseException) -> None:
        """Tell everyone who waits; nobody may be waiting, so the log gets it too."""
        self._error = error
        log.debug("%d messages were not published: %s", len(self.frames), error)
        for future, _ in self._end():
            if not future.done():
                future.set_exception(error)

    def wait(self, index: int) -> Generator[object, None, int]:
        """Wait for the number of receivers of one message."""
        if self._waiting is not None:
            # A future each: cancelling one who waits must not cancel the others.
            future: asyncio.Future[int] = self.loop.create_future()
            self._waiting.append((future, index))
            return (yield from future.__await__())
        if self._error is not None:
            raise self._error
        return self._count(index)

    def _end(self) -> list[tuple[asyncio.Future[int], int]]:
        waiting, self._waiting = self._waiting or [], None
        return waiting

    def _count(self, index: int) -> int:
        return int.from_bytes((self._receivers or b"")[4 * index : 4 * index + 4], "big")


class Receipt:
    """A message under way; awaiting it gives its number of receivers, not awaiting is fine."""

    __slots__ = ("_index", "_run")

    def __init__(self, run: _Run, index: int) -> None:
        self._run = run
        self._index = index

    def __await__(self) -> Generator[object, None, int]:
        return self._run.wait(self._index)
