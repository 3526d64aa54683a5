"""Sends messages: those of one loop turn leave as one run with one reply for all.

The sync twin, written by hand, sends each by itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import ClassVar

from nexo.client._async.link.gathering import FULL, Gathering
from nexo.client._async.link.link import Link
from nexo.client.pubsub_message import SteadyClock
from nexo.client.replies import Reply, room_bytes
from nexo.errors import Forbidden, InvalidInput, NexoError
from nexo.protocol.ops import Op
from nexo.protocol.pubsub import (
    RUN_BYTES,
    Publish,
    message_frame,
    pack_publish,
    parse_partly,
    topic_of,
)

_MESSAGE_BYTES = 22
"""What a message takes beside its topic and value."""


class Publisher:
    """Gathers messages; their order is kept, also between retained and plain ones."""

    most: ClassVar = FULL
    """How many messages make a request, so that it is served while the next is on its way."""

    def __init__(self, link: Link) -> None:
        self.link = link
        self.clock = SteadyClock()
        self._run: _Run | None = None

    def send(
        self, topic: bytes, value: bytes, options: Publish | None = None
    ) -> asyncio.Future[int]:
        """Publish one message; await the result for the number of receivers."""
        run = self._run
        size = len(topic) + len(value) + _MESSAGE_BYTES
        if run is None or run.options != options or run.size_bytes + size > run.room_bytes:
            run = self._begin(options)
        run.frames.append(message_frame(topic, value, run.timestamp_ms))
        run.size_bytes += size
        receipt = run.gathering.receipt()
        if run.size_bytes >= run.room_bytes or len(run.frames) >= FULL:
            self.flush()
        return receipt

    def _begin(self, options: Publish | None) -> _Run:
        self.flush()
        run = self._run = _Run(self, options)
        asyncio.get_running_loop().call_soon(self._end_of_turn, run)
        return run

    def _end_of_turn(self, run: _Run) -> None:
        if run is self._run:
            self.flush()

    def flush(self) -> None:
        """Send what was gathered, without waiting for the end of the turn."""
        run, self._run = self._run, None
        if run is not None:
            self.send_run(run)

    def send_run(self, run: _Run) -> None:
        """Send gathered messages."""
        try:
            request = _request(run.options, b"".join(run.frames))
        except Exception as error:  # whoever waits would wait for ever
            run.gathering.refuse(error)
            return
        run.gathering.send(self.link, *request)

    async def send_all(self, runs: list[bytes], options: Publish | None) -> list[Reply]:
        """Send runs of whole frames, after what was gathered; if one fails, so do all."""
        self.flush()
        return await asyncio.gather(*(self.link.call(*_request(options, run)) for run in runs))


def _request(options: Publish | None, frames: bytes) -> tuple[Op, *tuple[bytes, ...]]:
    if options is None:
        return Op.PUBLISH_RUN, frames
    return Op.PUBLISH, pack_publish(options), frames


class _Run:
    """Messages that share one request."""

    __slots__ = (
        "frames", "gathering", "options", "publisher", "room_bytes", "size_bytes", "timestamp_ms",
    )  # fmt: skip

    def __init__(self, publisher: Publisher, options: Publish | None) -> None:
        self.publisher = publisher
        self.options = options
        self.timestamp_ms = publisher.clock.now_ms()
        self.frames: list[bytes] = []
        self.size_bytes = 0
        self.room_bytes = room_bytes(publisher.link.welcome, RUN_BYTES)
        self.gathering: Gathering[int] = Gathering(
            partial(_receivers, self.frames), self.divide, (InvalidInput, Forbidden)
        )

    def divide(self) -> None:
        """Send it again in halves: nothing was published, and each shall hear of itself why."""
        middle = len(self.frames) // 2
        for which in (slice(middle), slice(middle, None)):
            half = _Run(self.publisher, self.options)
            half.frames += self.frames[which]
            half.gathering.adopt(self.gathering.receipts[which])
            self.publisher.send_run(half)


def _receivers(frames: list[bytes], reply: Reply) -> Sequence[int | NexoError]:
    counts, refused = parse_partly(reply or b"", len(frames))
    if not refused:
        return counts
    found: list[int | NexoError] = [*counts]
    for at in refused:
        topic = topic_of(frames[at]).decode()
        found[at] = Forbidden(
            f"you may not write pub/sub topic {topic!r}: "
            f"it takes a permission such as pubsub:write:{topic}"
        )
    return found
