"""What pub/sub writes to its journal: every change of a retained message."""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from struct import error as StructError  # noqa: N812

import msgspec

from nexo.brokers.pubsub.message import PubSubMessage
from nexo.brokers.pubsub.retained import Retained, RetainedMessages
from nexo.errors import Corrupt


class KeptFrame(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """A topic's last message was set, as version 0.1.0 wrote it: ``frame`` is a push frame."""

    topic: str
    frame: bytes
    expires_ms: int


class Cleared(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """A topic's last message was cleared."""

    topic: str


class Kept(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """A topic's last message was set."""

    topic: str
    value: bytes
    time_ms: int
    headers: bytes
    expires_ms: int


_FRAME = Struct(">6sIQI")
"""Start of a push frame: kind, meta and id; length; time; length of the topic that follows."""
_encode = msgspec.msgpack.Encoder().encode
_decoder: msgspec.msgpack.Decoder[KeptFrame | Cleared | Kept] = msgspec.msgpack.Decoder(
    KeptFrame | Cleared | Kept
)


def kept(retained: Retained) -> bytes:
    """The record of a retained publish."""
    topic, value, time_ms, headers = retained.message
    return _encode(Kept(topic, value, time_ms, headers, retained.expires_ms))


def cleared(topic: str) -> bytes:
    """The record of an empty retained publish."""
    return _encode(Cleared(topic))


def snapshot(retained: RetainedMessages, now_ms: int) -> Iterator[bytes]:
    """The records that rebuild everything retained."""
    return map(kept, retained.all(now_ms))


def apply(raw: bytes, retained: RetainedMessages) -> bool:
    """Apply a record during recovery; the caller removes expired messages.

    Returns whether it has the format of version 0.1.0.
    """
    match _decoded(raw):
        case Kept(topic, value, time_ms, headers, expires_ms):
            retained.put(Retained(PubSubMessage(topic, value, time_ms, headers), expires_ms))
        case KeptFrame(topic, frame, expires_ms):
            retained.put(Retained(_message(topic, frame), expires_ms))
            return True
        case Cleared(topic):
            retained.clear(topic)
    return False


def _message(topic: str, frame: bytes) -> PubSubMessage:
    try:
        _, _, time_ms, topic_size = _FRAME.unpack_from(frame)
    except StructError:
        raise Corrupt(f"the retained message of {topic!r} is cut short") from None
    return PubSubMessage(topic, frame[_FRAME.size + topic_size :], time_ms)


def _decoded(raw: bytes) -> KeptFrame | Cleared | Kept:
    try:
        return _decoder.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise Corrupt(f"malformed record of a retained message: {error}") from None
