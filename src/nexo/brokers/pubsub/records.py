"""What pub/sub writes to its journal: every change of a retained message."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from nexo.brokers.pubsub.retained import Retained, RetainedMessages
from nexo.errors import Corrupt


class Kept(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """A topic's last message was set."""

    topic: str
    message: bytes
    expires_ms: int


class Cleared(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """A topic's last message was cleared."""

    topic: str


_encode = msgspec.msgpack.Encoder().encode
_decoder: msgspec.msgpack.Decoder[Kept | Cleared] = msgspec.msgpack.Decoder(Kept | Cleared)


def kept(retained: Retained) -> bytes:
    """The record of a retained publish."""
    return _encode(Kept(retained.topic, retained.message, retained.expires_ms))


def cleared(topic: str) -> bytes:
    """The record of an empty retained publish."""
    return _encode(Cleared(topic))


def snapshot(retained: RetainedMessages, now_ms: int) -> Iterator[bytes]:
    """The records that rebuild everything retained."""
    return map(kept, retained.all(now_ms))


def replay(records: Iterable[bytes], retained: RetainedMessages, now_ms: int) -> None:
    """Apply records in order; what expired while the broker was down does not come back."""
    for raw in records:
        apply(raw, retained)
    retained.expire(now_ms)


def apply(raw: bytes, retained: RetainedMessages) -> None:
    """Make a change again during recovery; the caller expires what is over."""
    match _decoded(raw):
        case Kept(topic, message, expires_ms):
            retained.put(Retained(topic, message, expires_ms))
        case Cleared(topic):
            retained.clear(topic)


def _decoded(raw: bytes) -> Kept | Cleared:
    try:
        return _decoder.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise Corrupt(f"a retained message's record makes no sense: {error}") from None
