"""The bytes of Kafka's messages: reads numbers and lengths with bounds, writes them."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from struct import Struct

from nexo import limits
from nexo.errors import ProtocolError

I16, I32 = Struct(">h"), Struct(">i")
_TAGS = 256
"""More tagged fields than any structure of Kafka's has."""


class Input:
    """Bytes of one request, read from the front. `ProtocolError` where they make no sense."""

    __slots__ = ("_at", "_data", "_left")

    def __init__(self, data: memoryview) -> None:
        self._data = data
        self._at = 0
        self._left = limits.KAFKA_ELEMENTS

    def number(self, kind: Struct) -> int:
        """A number of fixed size."""
        try:
            (value,) = kind.unpack_from(self._data, self._at)
        except struct.error:
            raise ProtocolError("a request is cut short") from None
        self._at += kind.size
        found: int = value
        return found

    def varint(self) -> int:
        """An unsigned number of variable size."""
        value = shift = 0
        while True:
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7
            if shift > 28:
                raise ProtocolError("a number in a request is too long")

    def take(self, size: int) -> memoryview:
        end = self._at + size
        if size < 0 or end > len(self._data):
            raise ProtocolError("a request is cut short")
        found = self._data[self._at : end]
        self._at = end
        return found

    def length(self, kind: Struct, flexible: bool) -> int:
        """The length of a text, bytes or an array; -1 for null."""
        size = self.varint() - 1 if flexible else self.number(kind)
        if size < -1:
            raise ProtocolError("a length in a request is negative")
        return size

    def count(self, flexible: bool) -> int:
        """The elements of an array; all arrays of a request together are bounded."""
        size = self.length(I32, flexible)
        self._left -= max(size, 0)
        if self._left < 0 or size > len(self._data) - self._at:
            raise ProtocolError(f"a request announces {size} elements, which it does not have")
        return size

    def tags(self) -> Iterator[tuple[int, memoryview]]:
        """The tagged fields at the end of a structure; they count as elements too."""
        many = self.varint()
        self._left -= many
        if self._left < 0 or many > _TAGS:
            raise ProtocolError(f"a structure in a request announces {many} tagged fields")
        for _ in range(many):
            tag = self.varint()
            yield tag, self.take(self.varint())

    def skip_tags(self) -> None:
        for _ in self.tags():
            pass


def write_varint(out: bytearray, value: int) -> None:
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def write_length(out: bytearray, size: int, kind: Struct, flexible: bool) -> None:
    if flexible:
        write_varint(out, size + 1)
    else:
        out += kind.pack(size)
