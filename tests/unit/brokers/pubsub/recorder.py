"""A connection that only remembers what was sent to it."""

from __future__ import annotations

from nexo.brokers.pubsub.message import Encoding, Publication
from nexo.brokers.pubsub.outbox import OutboxLimits
from nexo.brokers.pubsub.subscriber import Subscriber
from nexo.dialects.nexo.pubsub import OURS, Received
from nexo.model import Policy
from nexo.protocol.frames import HEADER, HEADER_SIZE
from nexo.protocol.pubsub import message_frame, parse_pushes, parse_run

LIMITS = OutboxLimits(100, 1_000_000)
DISCONNECT = OutboxLimits(2, 1_000_000, Policy.DISCONNECT)


class Recorder:
    """A `Sink` with one subscriber on it."""

    def __init__(self, encoding: Encoding = OURS) -> None:
        self.pushes: list[bytes] = []
        self.kicked: list[str] = []
        self.client = Subscriber(self, "test", encoding)

    def push(self, data: bytes) -> None:
        self.pushes.append(data)

    def kick(self, reason: str) -> None:
        self.kicked.append(reason)

    @property
    def frames(self) -> list[tuple[int, bytes]]:
        """The meta and payload of every frame."""
        return split(b"".join(self.pushes))

    @property
    def received(self) -> list[tuple[str, bytes]]:
        """The topic and content of every message."""
        return messages(b"".join(self.pushes))

    @property
    def contents(self) -> list[bytes]:
        return [content for _, content in self.received]


def messages(frames: bytes) -> list[tuple[str, bytes]]:
    """The topic and content of every message in them."""
    return [
        (pushed.topic.decode(), value[1:])
        for pushed in parse_pushes(frames)
        for value, _ in pushed.messages
    ]


def split(data: bytes) -> list[tuple[int, bytes]]:
    frames, at = [], 0
    while at < len(data):
        _, meta, _, length = HEADER.unpack_from(data, at)
        frames.append((meta, data[at + HEADER_SIZE : at + HEADER_SIZE + length]))
        at += HEADER_SIZE + length
    return frames


def run(*messages: tuple[str, bytes]) -> Publication:
    """Messages as a publisher sends them."""
    frames = [message_frame(topic.encode(), b"\0" + value, 1) for topic, value in messages]
    return Received(parse_run(b"".join(frames)))
