"""Messages and commands of pub/sub, as clients and server share them.

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
====  ==========================================================================

Meta 0 is the existing client's push: ``topic str, value`` alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from struct import Struct, unpack
from struct import error as StructError  # noqa: N812
from typing import Annotated, Any, Final, NamedTuple, TypeVar

import msgspec

from nexo.errors import InvalidOption, ProtocolError
from nexo.protocol.frames import HEADER, HEADER_SIZE, Buffer, Kind, Reader, pack_str, pack_u32
from nexo.refusals import UNWRITABLE, in_words, unwritable

TIMESTAMPED: Final = 1
RETAINED: Final = 2
ADDRESSED: Final = 4

T = TypeVar("T")

RUN_BYTES: Final = 256 * 1024
"""Enough messages for one request: more would only add latency."""

_MESSAGE = Struct(">6sIQI")
_LIVE: Final = HEADER.pack(Kind.PUSH, TIMESTAMPED, 0, 0)[:6]
_TIMESTAMP_SIZE = 8
_TOPIC_FIELD = HEADER_SIZE + _TIMESTAMP_SIZE
_TOPIC = _MESSAGE.size


# -- messages -------------------------------------------------------------------


def message_frame(topic: bytes, value: Buffer, timestamp_ms: int) -> bytes:
    """One message, ready to be published or pushed."""
    length = _TIMESTAMP_SIZE + 4 + len(topic) + len(value)
    return _MESSAGE.pack(_LIVE, length, timestamp_ms, len(topic)) + topic + value


def classic_frame(message: bytes) -> bytes:
    """The message as it goes to clients that never said HELLO."""
    length = len(message) - HEADER_SIZE - _TIMESTAMP_SIZE
    return HEADER.pack(Kind.PUSH, 0, 0, length) + message[_TOPIC_FIELD:]


def addressed_frame(message: bytes, pattern: bytes, flags: int = 0) -> bytes:
    """The message as it goes to one subscription; ``pattern`` is the packed ``str``."""
    length = len(message) - HEADER_SIZE + len(pattern)
    head = HEADER.pack(Kind.PUSH, TIMESTAMPED | ADDRESSED | flags, 0, length)
    return head + pattern + message[HEADER_SIZE:]


def topic_of(message: bytes) -> bytes:
    """The topic of one message frame."""
    return message[_TOPIC : _TOPIC + _MESSAGE.unpack_from(message)[3]]


def is_empty(message: bytes) -> bool:
    """Whether the value has no content: a retained publish of it clears the topic (SPEC C3)."""
    return len(message) == _TOPIC + int(_MESSAGE.unpack_from(message)[3]) + 1


class Run:
    """Message frames one after another, as one publish carries them."""

    __slots__ = ("ends", "frames", "topics")

    def __init__(self, frames: bytes, topics: list[bytes], ends: list[int]) -> None:
        self.frames = frames
        self.topics = topics
        self.ends = ends
        """Where each message ends in ``frames``."""

    def part(self, first: int, last: int) -> Part:
        """The messages ``first`` to ``last``, exclusive."""
        begin = self.ends[first - 1] if first else 0
        whole = last - first == len(self.ends)
        frames = self.frames if whole else self.frames[begin : self.ends[last - 1]]
        return Part(frames, begin, self.ends[first:last])


class Part:
    """Consecutive messages that go to the same receivers; each form is made at most once."""

    __slots__ = ("_base", "_classic", "_ends", "_messages", "count", "frames")

    def __init__(self, frames: bytes, base: int, ends: list[int]) -> None:
        self.frames = frames
        self.count = len(ends)
        self._base = base
        self._ends = ends
        self._messages: list[bytes] | None = None
        self._classic: list[bytes] | None = None

    def messages(self, coded: bool) -> list[bytes]:
        """Each message as a frame of its own, in the client's dialect."""
        if self._messages is None:
            self._messages = self._split()
        if coded:
            return self._messages
        if self._classic is None:
            self._classic = [classic_frame(message) for message in self._messages]
        return self._classic

    def shared(self, pattern: str) -> list[bytes]:
        """Each message as it goes to one member of the group of ``pattern``."""
        field = pack_str(pattern)
        return [addressed_frame(message, field) for message in self.messages(True)]

    def _split(self) -> list[bytes]:
        base, begin, messages = self._base, 0, []
        for end in self._ends:
            messages.append(self.frames[begin : end - base])
            begin = end - base
        return messages


def parse_run(frames: bytes) -> Run:
    """Find the messages in a publish; `ProtocolError` if anything but whole messages is there."""
    topics: list[bytes] = []
    ends: list[int] = []
    at, size, unpack = 0, len(frames), _MESSAGE.unpack_from
    try:
        while at < size:
            start, length, _, topic_size = unpack(frames, at)
            value = at + _TOPIC + topic_size
            topics.append(frames[at + _TOPIC : value])
            at += HEADER_SIZE + length
            if start != _LIVE or value >= at:
                raise ProtocolError("a run holds timestamped push frames with a topic and a value")
            ends.append(at)
    except StructError:
        raise ProtocolError("a run of messages ends within a message") from None
    if at != size or not ends:
        raise ProtocolError("a run of messages is empty or ends within a message")
    return Run(frames, topics, ends)


def run_of(topic: bytes, value: Buffer, timestamp_ms: int) -> Run:
    """A run of one message; an absent value counts as empty bytes."""
    frames = message_frame(topic, value or b"\0", timestamp_ms)
    return Run(frames, [topic], [len(frames)])


def pack_runs(
    topic: bytes, values: Iterable[bytes], timestamp_ms: int, run_bytes: int, most: int
) -> Iterator[bytes]:
    """Messages for one topic, as runs of at most ``run_bytes`` and ``most`` messages.

    A message larger than that goes alone.
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
    """What `pack_receivers` packed."""
    return list(unpack(f">{len(reply) // 4}I", reply))


def pack_receivers(counts: Iterable[tuple[int, int]]) -> bytes:
    """The reply to a run: for each stretch of ``(receivers, messages)``, one u32 a message."""
    return b"".join([pack_u32(receivers) * messages for receivers, messages in counts])


def pack_partly(receivers: bytes, refused: Sequence[int]) -> bytes:
    """The reply to a run that was published but for ``refused`` messages.

    ``receivers`` is that to the others. Refused ones have 0, and their numbers follow.
    """
    counts = parse_receivers(receivers)
    for at in refused:
        counts.insert(at, 0)
    return b"".join(map(pack_u32, [*counts, *refused]))


def parse_partly(reply: Buffer, count: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The receivers of ``count`` messages, and the numbers of those that were refused."""
    found = unpack(f">{len(reply) // 4}I", reply)
    return found[:count], found[count:]


class Pushed(NamedTuple):
    """Messages that came one after another, on one topic."""

    topic: bytes
    messages: list[tuple[bytes, int]]
    """The value of each, and its timestamp."""
    pattern: bytes | None = None
    """The one pattern that a copy is for, if it is addressed."""
    retained: bool = False


def parse_pushes(frames: bytes) -> Iterator[Pushed]:
    """The messages in a run of whole push frames, as a client that said HELLO gets them."""
    at, size, unpack = 0, len(frames), _MESSAGE.unpack_from
    topic, messages = b"", list[tuple[bytes, int]]()
    while at < size:
        start, length, timestamp_ms, topic_size = unpack(frames, at)
        value, end = at + _TOPIC + topic_size, at + HEADER_SIZE + length
        if messages and (start != _LIVE or frames[at + _TOPIC : value] != topic):
            yield Pushed(topic, messages)
            messages = []
        if start != _LIVE:
            yield _parse_addressed(start[1], frames[at + HEADER_SIZE : end])
        else:
            if not messages:
                topic = frames[at + _TOPIC : value]
            messages.append((frames[value:end], timestamp_ms))
        at = end
    if messages:
        yield Pushed(topic, messages)


def _parse_addressed(meta: int, payload: bytes) -> Pushed:
    reader = Reader(payload)
    pattern = bytes(reader.take(reader.u32())) if meta & ADDRESSED else None
    timestamp_ms = reader.u64() if meta & TIMESTAMPED else 0
    topic = bytes(reader.take(reader.u32()))
    return Pushed(topic, [(bytes(reader.rest()), timestamp_ms)], pattern, bool(meta & RETAINED))


# -- commands -------------------------------------------------------------------


class Subscribe(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """SUBSCRIBE: options left out take the server's settings."""

    pattern: str
    policy: str = "drop_oldest"
    max_messages: int | None = None
    max_bytes: int | None = None
    no_retained: bool = False
    address: Annotated[str, msgspec.Meta(max_length=64)] = ""
    """What retained copies are addressed to instead of the pattern, to tell one subscription
    from another of the same pattern."""


class Publish(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """PUBLISH: how all messages of the run that follows are published."""

    retain: bool = False
    ttl_ms: int | None = None


class Will(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """WILL: what the broker publishes should this connection end without a goodbye."""

    topic: str
    value: bytes
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


_encode = msgspec.msgpack.Encoder().encode


def _command_bytes(command: object) -> bytes:
    try:
        return _encode(command)
    except UNWRITABLE as error:
        raise unwritable(error) from None


def pack_command(command: Subscribe | Will | Listing | None) -> bytes:
    """A command as the payload of its request; None takes back a will."""
    return _command_bytes(command)


def pack_publish(options: Publish) -> bytes:
    """The options of a PUBLISH, which come before its run: u32 length, then msgpack."""
    raw = _command_bytes(options)
    return pack_u32(len(raw)) + raw


_subscribe = msgspec.msgpack.Decoder(Subscribe)
_publish = msgspec.msgpack.Decoder(Publish)
_will: msgspec.msgpack.Decoder[Will | None] = msgspec.msgpack.Decoder(Will | None)
_listing = msgspec.msgpack.Decoder(Listing)
_rows = msgspec.msgpack.Decoder(list[dict[str, Any]])
_classic_publish = msgspec.json.Decoder(ClassicPublish)


def parse_subscribe(payload: Buffer) -> Subscribe:
    """The command of a SUBSCRIBE."""
    return _parsed(_subscribe, payload)


def parse_publish(payload: Buffer) -> tuple[Publish, Run]:
    """The options and the messages of a PUBLISH."""
    reader = Reader(payload)
    options = _parsed(_publish, reader.take(reader.u32()))
    return options, parse_run(bytes(reader.rest()))


def split_publish(payload: Buffer) -> tuple[bytes, bytes]:
    """What stands before the messages of a PUBLISH, and they."""
    reader = Reader(payload)
    reader.take(reader.u32())
    frames = bytes(reader.rest())
    return bytes(payload)[: len(payload) - len(frames)], frames


def parse_will(payload: Buffer) -> Will | None:
    """The command of a WILL."""
    return _parsed(_will, payload)


def parse_listing(payload: Buffer) -> Listing:
    """The command of a listing."""
    return _parsed(_listing, payload)


def pack_rows(rows: Iterable[dict[str, Any]]) -> bytes:
    """The reply to a listing."""
    return _command_bytes(list(rows))


def parse_rows(reply: Buffer) -> list[dict[str, Any]]:
    """The rows of a listing."""
    return _parsed(_rows, reply)


def parse_classic_publish(options: str) -> ClassicPublish:
    """The JSON options of a PUB; the error text is the one its client looks for."""
    if not options:
        return ClassicPublish()
    try:
        return _classic_publish.decode(options)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidOption(f"Invalid JSON options: {error}") from None


def _parsed(decoder: msgspec.msgpack.Decoder[T], payload: Buffer) -> T:
    try:
        return decoder.decode(payload)
    except msgspec.ValidationError as error:
        raise InvalidOption(in_words(error, decoder.type)) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError(f"the command is not valid msgpack: {error}") from None
