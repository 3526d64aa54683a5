"""The columns of a batch's body, in Arrow's memory layout.

Every column starts at a multiple of 8 bytes from the body's start. In this order, those in
brackets only when the header's ``columns`` field says so (`Column`):

- [timestamps ``int64[n]``, ms; else every record has the header's first timestamp]
- value offsets ``int32[n+1]``, value bytes
- [value validity bitmap; a zero bit is a null value: a tombstone]
- [value types ``uint8[n]``; else every value has the header's ``value_type``]
- [key validity bitmap, key offsets ``int32[n+1]``, key bytes]
- [headers offsets ``int32[n+1]``, headers bytes: one JSON object each, empty for none]
- [offset deltas ``int32[n]``, ascending; else record i has offset base + i]

Offset columns need not start at 0: their first entry is where their bytes start.
"""

from __future__ import annotations

import enum
import struct
import sys
from array import array
from collections.abc import Iterable, Sequence
from itertools import accumulate

from nexo.errors import Corrupt, PayloadTooLarge
from nexo.storage.header import ALIGN, Header

_I32 = struct.Struct("<i")
PADDING = tuple(bytes(-size % ALIGN) for size in range(ALIGN))
"""By size modulo 8: the zero bytes that pad a column."""


class Column(enum.IntFlag):
    """Which optional columns a body holds."""

    TIMESTAMPS = 0x01
    VALUE_NULLS = 0x02
    VALUE_TYPES = 0x04
    KEYS = 0x08
    HEADERS = 0x10
    DELTAS = 0x20


KNOWN = sum(Column)
_TIMESTAMPS = int(Column.TIMESTAMPS)


def int32s(numbers: Sequence[int]) -> bytes:
    return struct.pack(f"<{len(numbers)}i", *numbers)  # half the time of an array


def int64s(numbers: Sequence[int]) -> bytes:
    return struct.pack(f"<{len(numbers)}q", *numbers)


def read_int32s(raw: bytes | memoryview) -> list[int]:
    return _read("i", raw)


def read_int64s(raw: bytes | memoryview) -> list[int]:
    return _read("q", raw)


def _read(code: str, raw: bytes | memoryview) -> list[int]:
    numbers = array(code)
    numbers.frombytes(raw)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers.tolist()


def strings(items: Sequence[bytes]) -> list[bytes]:
    """The offsets and bytes columns of ``items``, padded."""
    try:
        offsets = int32s([*accumulate(map(len, items), initial=0)])
    except struct.error:
        raise PayloadTooLarge(
            "a batch holds at most 2 GiB; publish fewer records at once"
        ) from None
    content = b"".join(items)
    return [offsets, PADDING[len(offsets) % ALIGN], content, PADDING[len(content) % ALIGN]]


def padded(column: bytes) -> list[bytes]:
    return [column, PADDING[len(column) % ALIGN]]


def bitmap(valid: Iterable[bool], count: int) -> bytes:
    """A validity bitmap, least significant bit first."""
    digits = "".join(["1" if bit else "0" for bit in valid])
    return int(digits[::-1] or "0", 2).to_bytes((count + 7) // 8, "little")


def cut_bitmap(bits: bytes | memoryview, start: int, stop: int) -> bytes:
    """The bits ``start`` to ``stop`` as a bitmap of their own."""
    chunk = int.from_bytes(bits[start // 8 : (stop + 7) // 8], "little") >> start % 8
    count = stop - start
    return (chunk & (1 << count) - 1).to_bytes((count + 7) // 8, "little")


def read_bitmap(bits: bytes | memoryview, count: int) -> str:
    """One character per record, ``'1'`` for valid."""
    whole = int.from_bytes(bits, "little") & (1 << count) - 1
    return format(whole, f"0{count}b")[::-1] if count else ""


class Strings:
    """The position of one variable-length column in the body."""

    __slots__ = ("content", "first", "offsets", "size")

    def __init__(self, offsets: int, first: int, content: int, size: int) -> None:
        self.offsets = offsets
        self.first = first
        self.content = content
        self.size = size


class Layout:
    """Where each column of a body starts; -1 if absent.

    Building one checks that every column lies within the body: `Corrupt` if not.
    """

    __slots__ = (
        "deltas", "headers", "key_valid", "keys", "timestamps", "value_types", "value_valid",
        "values",
    )  # fmt: skip

    def __init__(self, header: Header, body: bytes | memoryview) -> None:
        n, has, at = header.count, header.columns, _Cursor(body)
        self.timestamps = at.take(8 * n) if has & _TIMESTAMPS else -1
        self.values = at.strings(n)
        self.value_valid = self.value_types = self.key_valid = self.deltas = -1
        self.keys: Strings | None = None
        self.headers: Strings | None = None
        if has & ~_TIMESTAMPS:
            self._place_rest(n, has, at)
        at.end()

    def _place_rest(self, n: int, has: int, at: _Cursor) -> None:
        if has & ~KNOWN:
            raise Corrupt(f"batch has columns 0x{has:x} that are not known here")
        if has & Column.VALUE_NULLS:
            self.value_valid = at.take((n + 7) // 8)
        if has & Column.VALUE_TYPES:
            self.value_types = at.take(n)
        if has & Column.KEYS:
            self.key_valid = at.take((n + 7) // 8)
            self.keys = at.strings(n)
        if has & Column.HEADERS:
            self.headers = at.strings(n)
        if has & Column.DELTAS:
            self.deltas = at.take(4 * n)


class _Cursor:
    """Walks over the columns of a body."""

    __slots__ = ("_at", "_body")

    def __init__(self, body: bytes | memoryview) -> None:
        self._body = body
        self._at = 0

    def take(self, size: int) -> int:
        start = self._at
        self._at = start + (size + 7 & ~7)
        if self._at > len(self._body):
            raise Corrupt(f"a column of {size} bytes runs past the end of the batch")
        return start

    def strings(self, count: int) -> Strings:
        offsets = self.take(4 * (count + 1))
        (first,) = _I32.unpack_from(self._body, offsets)
        (last,) = _I32.unpack_from(self._body, offsets + 4 * count)
        if not 0 <= first <= last:
            raise Corrupt("a column's offsets are malformed")
        return Strings(offsets, first, self.take(last - first), last - first)

    def end(self) -> None:
        if self._at != len(self._body):
            raise Corrupt(f"{len(self._body) - self._at} extra bytes at the end of the batch")
