"""Sends messages, each by itself; the async twin gathers those of one loop turn."""

from __future__ import annotations

from nexo.client._sync.connection import Link
from nexo.protocol.ops import Op
from nexo.protocol.pubsub import Publish, pack_publish


class Publisher:
    """Publishes on the link; any thread may call."""

    def __init__(self, link: Link) -> None:
        self._link = link

    def drain(self) -> None:
        """Nothing is under way between calls."""

    def send(self, frame: bytes, options: Publish | None = None) -> int:
        """Publish one message frame; returns the number of receivers."""
        if options is None:
            reply = self._link.call(Op.PUBLISH_RUN, frame)
        else:
            reply = self._link.call(Op.PUBLISH, pack_publish(options), frame)
        return int.from_bytes(reply or b"", "big")
