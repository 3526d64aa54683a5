"""Sends messages: those of one loop turn are sent as one run with one reply.

The sync twin, written by hand, sends each by itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import ClassVar

from nexo.client._async.link.gathering import FULL, GatheredSends, RunSender
from nexo.client._async.link.link import Link
from nexo.client.pubsub_message import PublisherClock
from nexo.client.replies import Reply
from nexo.errors import Forbidden, InvalidInput, NexoError
from nexo.model import Buffer
from nexo.protocol.messages import pack_headed
from nexo.protocol.ops import Op
from nexo.protocol.pubsub import (
    RUN_BYTES,
    Publish,
    message_frame,
    parse_with_refused,
    topic_of,
)


class MessagePublisher(RunSender["_Messages"]):
    """Gathers messages; keeps their order, also between retained and plain ones."""

    most: ClassVar = FULL
    """Messages per request, so that one is served while the next is in flight."""

    def __init__(self, link: Link) -> None:
        super().__init__(link)
        self.clock = PublisherClock()

    def send(
        self, topic: bytes, value: bytes, options: Publish | None = None, headers: bytes = b""
    ) -> asyncio.Future[int]:
        """Publish one message; await the result for the number of receivers."""
        run = self.run
        if run is None or run.options != options:
            run = self.start(_Messages(self, options))
        message = message_frame(topic, value, run.timestamp_ms, headers)
        size = run.size_bytes + len(message)
        if size > run.room_bytes and run.frames:
            run, size = self.start(_Messages(self, options)), len(message)
        run.frames.append(message)
        run.size_bytes = size
        receipt = run.receipt()
        if size >= run.room_bytes or len(run.frames) >= FULL:
            self.link.gatherer.leave(run)
        return receipt

    async def send_all(self, runs: list[bytes], options: Publish | None) -> list[Reply]:
        """Send runs of whole frames; if one fails, all fail."""
        requests = [_request(options, run) for run in runs]
        return await asyncio.gather(*(self.link.call(op, *parts) for op, parts in requests))


def _request(options: Publish | None, frames: bytes) -> tuple[int, tuple[Buffer, ...]]:
    if options is None:
        return Op.PUBLISH_RUN, (frames,)
    return Op.PUBLISH, (pack_headed(options), frames)


class _Messages(GatheredSends[int]):
    """Messages that share one request."""

    __slots__ = ("frames", "options", "publisher", "timestamp_ms")
    due_to_one = (InvalidInput, Forbidden)

    def __init__(self, publisher: MessagePublisher, options: Publish | None) -> None:
        super().__init__(publisher.link, RUN_BYTES)
        self.publisher = publisher
        self.options = options
        self.timestamp_ms = publisher.clock.now_ms()
        self.frames: list[bytes] = []

    def leaves(self) -> None:
        self.publisher.run = None

    def request(self) -> tuple[int, tuple[Buffer, ...]]:
        return _request(self.options, b"".join(self.frames))

    def part(self, which: slice) -> _Messages:
        part = _Messages(self.publisher, self.options)
        part.frames = self.frames[which]
        return part

    def results(self, reply: Reply) -> Sequence[int | NexoError]:
        counts, refused = parse_with_refused(reply or b"", len(self.frames))
        if not refused:
            return counts
        found: list[int | NexoError] = [*counts]
        for at in refused:
            topic = topic_of(self.frames[at]).decode()
            found[at] = Forbidden(
                f"you may not write pub/sub topic {topic!r}: "
                f"it needs a permission such as pubsub:write:{topic}"
            )
        return found
