"""Messages and commands of pub/sub, shared by clients and server.

A message is a PUSH frame and stays one from publisher to subscriber:
``0x03 · meta · id 0 · length · timestamp u64 · topic str · value``. A publisher writes
whole frames, so that the broker forwards runs of them without touching a byte.

====  ==========================================================================
bit   meaning in a push frame's meta
====  ==========================================================================
0     timestamped: the payload starts with the publisher's clock, ms
1     retained: the last value of its topic, delivered because of a new subscription
2     addressed: a ``str`` comes before the timestamp, the one pattern this copy is for, or
      the address its SUBSCRIBE gave; retained and shared copies are, others are for every
      pattern that matches
3     headed: after the topic comes a ``str`` with the headers, a JSON object
====  ==========================================================================

Meta 0 is the existing client's push: ``topic str, value`` alone. Commands and lists are packed as
`nexo.protocol.messages` says.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from struct import Struct, unpack
from struct import error as StructError  # noqa: N812
from typing import Final, NamedTuple

import msgspec

from nexo.errors import ProtocolError
from nexo.model import Buffer
from nexo.protocol.frames import HEADER, HEADER_SIZE, FieldReader, FrameKind, pack_u32, unpack_u32
from nexo.protocol.messages import unpack_headed

TIMESTAMPED: Final = 1
RETAINED: Final = 2
ADDRESSED: Final = 4
HEADED: Final = 8

RUN_BYTES: Final = 256 * 1024
"""Enough messages for one request: more would only add latency."""

_MESSAGE = Struct(">6sIQI")
_LIVE: Final = HEADER.pack(FrameKind.PUSH, TIMESTAMPED, 0, 0)[:6]
_HEADED: Final = HEADER.pack(FrameKind.PUSH, TIMESTAMPED | HEADED, 0, 0)[:6]
_NO_RUN: Final = "a run holds timestamped push frames with a topic and a value"
_headers = msgspec.json.Decoder(dict[str, msgspec.Raw])
_TIMESTAMP_SIZE = 8
_TOPIC = _MESSAGE.size


# -- messages -------------------------------------------------------------------


def message_frame(topic: bytes, value: Buffer, timestamp_ms: int, headers: bytes = b"") -> bytes:
    """One message, ready to be published or pushed; ``headers`` is a JSON object or empty."""
    length = _TIMESTAMP_SIZE + 4 + len(topic) + len(value)
    if not headers:
        return _MESSAGE.pack(_LIVE, length, timestamp_ms, len(topic)) + topic + value
    head = _MESSAGE.pack(_HEADED, length + 4 + len(headers), timestamp_ms, len(topic))
    return head + topic + pack_u32(len(headers)) + headers + value


def classic_frame(topic: bytes, value: Buffer) -> bytes:
    """A message for clients that never sent HELLO: without time and headers."""
    length = 4 + len(topic) + len(value)
    return HEADER.pack(FrameKind.PUSH, 0, 0, length) + pack_u32(len(topic)) + topic + value


def addressed_frame(message: bytes, pattern: bytes, flags: int = 0) -> bytes:
    """A message frame for one subscription; ``pattern`` is the packed ``str``."""
    length = len(message) - HEADER_SIZE + len(pattern)
    head = HEADER.pack(FrameKind.PUSH, message[1] | ADDRESSED | flags, 0, length)
    return head + pattern + message[HEADER_SIZE:]


def topic_of(message: bytes) -> bytes:
    return message[_TOPIC : _TOPIC + _MESSAGE.unpack_from(message)[3]]


class MessageRun(NamedTuple):
    """Consecutive message frames, as one publish carries them."""

    frames: bytes
    topics: list[bytes]
    ends: list[int]
    """Where each message ends in ``frames``."""


def parse_message(message: bytes) -> tuple[bytes, bytes, int, bytes]:
    """Topic, value, time in ms and headers of one frame of a run."""
    start, _, time_ms, topic_size = _MESSAGE.unpack_from(message)
    end = _TOPIC + topic_size
    topic, headers = message[_TOPIC:end], b""
    if start != _LIVE:
        size = unpack_u32(message, end)[0]
        headers = message[end + 4 : end + 4 + size]
        end += 4 + size
    return topic, message[end:], time_ms, headers


def parse_run(frames: bytes) -> MessageRun:
    """Find the messages in a publish; `ProtocolError` for anything but whole messages."""
    topics: list[bytes] = []
    ends: list[int] = []
    at, size, unpack = 0, len(frames), _MESSAGE.unpack_from
    try:
        while at < size:
            start, length, _, topic_size = unpack(frames, at)
            value = at + _TOPIC + topic_size
            topics.append(frames[at + _TOPIC : value])
            if start != _LIVE:
                value = _after_headers(start, frames, value)
            at += HEADER_SIZE + length
            if value >= at:
                raise ProtocolError(_NO_RUN)
            ends.append(at)
    except StructError:
        raise ProtocolError("a run of messages ends within a message") from None
    if at != size or not ends:
        raise ProtocolError("a run of messages is empty or ends within a message")
    return MessageRun(frames, topics, ends)


def _after_headers(start: bytes, frames: bytes, at: int) -> int:
    """Where the value begins after the headers at ``at``, which must be a JSON object."""
    if start != _HEADED:
        raise ProtocolError(_NO_RUN)
    end = at + 4 + int(unpack_u32(frames, at)[0])
    try:
        _headers.decode(frames[at + 4 : end])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise ProtocolError("the headers of a message must be a JSON object") from None
    return end


def pack_runs(
    topic: bytes, values: Iterable[bytes], timestamp_ms: int, run_bytes: int, most: int
) -> Iterator[bytes]:
    """Messages for one topic, as runs of at most ``run_bytes`` and ``most`` messages.

    A larger message is sent alone.
    """
    frames: list[bytes] = []
    room, head, last_size, taken = run_bytes, b"", -1, 0
    for value in values:
        if len(value) != last_size:
            last_size = len(value)
            taken = _TOPIC + len(topic) + last_size
            head = _MESSAGE.pack(_LIVE, taken - HEADER_SIZE, timestamp_ms, len(topic)) + topic
        if (taken > room and frames) or len(frames) == 2 * most:
            yield b"".join(frames)
            frames, room = [], run_bytes
        frames += (head, value)
        room -= taken
    if frames:
        yield b"".join(frames)


def parse_receivers(reply: bytes) -> list[int]:
    """Inverse of `pack_receivers`."""
    return list(unpack(f">{len(reply) // 4}I", reply))


def pack_receivers(counts: Iterable[tuple[int, int]]) -> bytes:
    """The reply to a run: for each ``(receivers, messages)``, one u32 per message."""
    return b"".join([pack_u32(receivers) * messages for receivers, messages in counts])


def pack_with_refused(counts: Iterable[tuple[int, int]], refused: Sequence[int]) -> bytes:
    """The reply to a run of which ``refused`` messages were not published.

    ``counts`` covers the others. Rejected ones have 0, and their indexes follow.
    """
    receivers = [count for count, messages in counts for _ in range(messages)]
    for at in refused:
        receivers.insert(at, 0)
    return b"".join(map(pack_u32, [*receivers, *refused]))


def parse_with_refused(reply: Buffer, count: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The receivers of ``count`` messages, and the indexes of rejected ones."""
    found = unpack(f">{len(reply) // 4}I", reply)
    return found[:count], found[count:]


class PushedMessages(NamedTuple):
    """Consecutive messages on one topic."""

    topic: bytes
    messages: list[tuple[bytes, int]]
    """The value of each, and its timestamp."""
    pattern: bytes | None = None
    """The one pattern that a copy is for, if it is addressed."""
    retained: bool = False
    headers: bytes = b""
    """A JSON object, or empty; a message with headers is alone."""


def parse_pushes(frames: bytes) -> Iterator[PushedMessages]:
    """The messages in a run of whole push frames, for a client that sent HELLO."""
    at, size, unpack = 0, len(frames), _MESSAGE.unpack_from
    topic, messages = b"", list[tuple[bytes, int]]()
    while at < size:
        start, length, timestamp_ms, topic_size = unpack(frames, at)
        value, end = at + _TOPIC + topic_size, at + HEADER_SIZE + length
        if messages and (start != _LIVE or frames[at + _TOPIC : value] != topic):
            yield PushedMessages(topic, messages)
            messages = []
        if start != _LIVE:
            yield _parse_marked(start[1], frames[at + HEADER_SIZE : end])
        else:
            if not messages:
                topic = frames[at + _TOPIC : value]
            messages.append((frames[value:end], timestamp_ms))
        at = end
    if messages:
        yield PushedMessages(topic, messages)


def _parse_marked(meta: int, payload: bytes) -> PushedMessages:
    reader = FieldReader(payload)
    pattern = bytes(reader.take(reader.u32())) if meta & ADDRESSED else None
    timestamp_ms = reader.u64() if meta & TIMESTAMPED else 0
    topic = bytes(reader.take(reader.u32()))
    headers = bytes(reader.take(reader.u32())) if meta & HEADED else b""
    messages = [(bytes(reader.rest()), timestamp_ms)]
    return PushedMessages(topic, messages, pattern, bool(meta & RETAINED), headers)


# -- commands -------------------------------------------------------------------


class Publish(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """PUBLISH: how all messages of the run that follows this head are published."""

    retain: bool = False
    ttl_ms: int | None = None


class Listing(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """PS_SUBSCRIPTIONS, PS_RETAINED and PS_TOPICS: which topics or patterns to list."""

    pattern: str = "#"
    limit: int = 100


class ClassicPublish(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The options of the existing client's PUB."""

    retain: bool = False
    ttl: float | None = None
    """Seconds."""


def parse_publish(payload: Buffer) -> tuple[Publish, MessageRun]:
    options, run = unpack_headed(Publish, payload)
    return options, parse_run(bytes(run))


def classic_ttl_ms(seconds: float) -> int:
    """A TTL of a PUB in milliseconds; 0 if it is invalid."""
    return int(seconds * 1000) if 0.001 <= seconds < 1e12 else 0
