"""A Produce request that is too large: read without keeping its records, refused by partition.

A client whose connection was just closed would send it again, for ever.
"""

from __future__ import annotations

from collections.abc import Generator
from struct import Struct
from typing import TypeAlias, TypeVar
from uuid import UUID

from nexo import limits
from nexo.dialects.kafka.format.apis import APIS, ApiKey
from nexo.dialects.kafka.format.errors import Error
from nexo.dialects.kafka.format.wire import I16, I32, Input
from nexo.dialects.kafka.request import KafkaConnection, Request, by_topic
from nexo.dialects.pipelined import Pending
from nexo.errors import ProtocolError

_HEAD = Struct(">ihhi")
_ACKS = Struct(">hi")
_UUID_BYTES = 16
_API = APIS[ApiKey.PRODUCE]
_BY_ID = 13
"""From this version on topics have their ids."""

T = TypeVar("T")
ParseSteps: TypeAlias = Generator[int, bytes, T]
"""Yields how many bytes it needs next, or, below zero, how many it does not."""


class OversizedProduce:
    """Such a request while it arrives."""

    def __init__(self, session: KafkaConnection, size: int) -> None:
        self.left = size
        self._session = session
        self._version = self._correlation = self._acks = 0
        self._partitions: list[tuple[str | UUID, int]] = []
        self._is_parsed = False
        self._read = bytearray()
        self._steps = self._parse()
        self._wants = next(self._steps)

    def feed(self, data: memoryview) -> None:
        self.left -= len(data)
        at = 0
        while at < len(data) and not self._is_parsed:
            here = len(data) - at
            if self._wants < 0:
                size = min(-self._wants, here)
                self._wants += size
            else:
                size = min(self._wants - len(self._read), here)
                self._read += data[at : at + size]
            at += size
            if self._wants == len(self._read):
                self._step()
        if not (self.left or self._is_parsed):
            raise ProtocolError("a request is cut short")

    def answer(self, request: Pending) -> None:
        asked = Request(self._session, request, _API, self._version, self._correlation, "", {})
        if self._acks == 0:
            asked.answer_nothing()
            return
        most = limits.KAFKA_REQUEST_BYTES
        message = f"a request must be at most {most:,} bytes: send fewer records at a time"
        row = {"error": Error.MESSAGE_TOO_LARGE, "message": message}
        rows = ((topic, {"index": index} | row) for topic, index in self._partitions)
        asked.answer({"topics": by_topic(rows)})

    def _step(self) -> None:
        read, self._read = bytes(self._read), bytearray()
        try:
            self._wants = self._steps.send(read)
        except StopIteration:
            self._is_parsed = True

    # -- the request, which is described in `format.apis` ----------------------------------

    def _parse(self) -> ParseSteps[None]:
        _, key, self._version, self._correlation = _HEAD.unpack((yield _HEAD.size))
        if key != ApiKey.PRODUCE or not _API.low <= self._version <= _API.high:
            raise ProtocolError(f"a request of {self.left} bytes is too large")
        flexible = _API.is_flexible(self._version)
        yield from _text(False)  # the client's name
        yield from _tags(flexible)
        yield from _text(flexible)  # the transactional id
        self._acks, _ = _ACKS.unpack((yield _ACKS.size))
        for _ in range((yield from self._count(flexible))):
            topic = yield from (_id() if self._version >= _BY_ID else _text(flexible))
            for _ in range((yield from self._count(flexible))):
                (index,) = I32.unpack((yield I32.size))
                yield from _skip((yield from _length(I32, flexible)))
                yield from _tags(flexible)
                self._partitions.append((topic, index))
            yield from _tags(flexible)

    def _count(self, flexible: bool) -> ParseSteps[int]:
        count = yield from _length(I32, flexible)
        if len(self._partitions) + count > limits.KAFKA_ELEMENTS:
            raise ProtocolError(f"a request announces {count} elements")
        return count


def _varint(most: int = 5) -> ParseSteps[int]:
    raw = b""
    while len(raw) < most and (not raw or raw[-1] > 0x7F):
        raw += yield 1
    return Input(memoryview(raw)).varint()


def _length(kind: Struct, flexible: bool) -> ParseSteps[int]:
    if flexible:
        size = (yield from _varint()) - 1
    else:
        (size,) = kind.unpack((yield kind.size))
    return max(size, 0)


def _text(flexible: bool) -> ParseSteps[str]:
    size = yield from _length(I16, flexible)
    if size > limits.BEFORE_LOGIN_BYTES * 2:
        raise ProtocolError("a text in a request is too long")
    raw = (yield size) if size else b""
    return raw.decode(errors="replace")


def _id() -> ParseSteps[UUID]:
    return UUID(bytes=(yield _UUID_BYTES))


def _skip(size: int) -> ParseSteps[None]:
    if size:
        yield -size


def _tags(flexible: bool) -> ParseSteps[None]:
    if not flexible:
        return
    for _ in range((yield from _varint())):
        yield from _varint()
        yield from _skip((yield from _varint()))
