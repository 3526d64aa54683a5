"""Sends messages, each by itself; the async twin gathers those of one loop turn."""

from __future__ import annotations

from typing import ClassVar

from nexo.client._sync.link.link import Link
from nexo.client.pubsub_message import PublisherClock
from nexo.client.replies import Reply
from nexo.protocol.messages import pack_headed
from nexo.protocol.ops import Op
from nexo.protocol.pubsub import Publish, message_frame


class MessagePublisher:
    """Publishes on the link; any thread may call."""

    most: ClassVar = 1 << 20
    """How many messages make a request: any number, as its reply is waited for."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self.clock = PublisherClock()

    def send_all(self, runs: list[bytes], options: Publish | None) -> list[Reply]:
        """Send runs of whole frames, up to the first that fails."""
        return [self.call(run, options) for run in runs]

    def send(
        self, topic: bytes, value: bytes, options: Publish | None = None, headers: bytes = b""
    ) -> int:
        """Publish one message; returns the number of receivers."""
        frame = message_frame(topic, value, self.clock.now_ms(), headers)
        return int.from_bytes(self.call(frame, options) or b"", "big")

    def call(self, frames: bytes, options: Publish | None) -> Reply:
        """Send whole frames as one request."""
        if options is None:
            return self._link.call(Op.PUBLISH_RUN, frames)
        return self._link.call(Op.PUBLISH, pack_headed(options), frames)
