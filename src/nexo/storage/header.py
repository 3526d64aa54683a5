"""The 64-byte header that every entry of a log begins with, on the wire and on disk.

An entry is a batch of records: this header, then a body that only its owner understands.
Only this module reads or finds headers in raw bytes; nothing else knows their layout. All
integers are little-endian, as in Arrow.

======  ====  ==============================================================
offset  size  field
======  ====  ==============================================================
0       2     magic ``NX``
2       2     head check: low 16 bits of CRC32C over bytes 4..63
4       4     CRC32C over bytes 16..length, so everything but the base offset
8       8     base offset: stamped by the log on append
16      4     length of the whole entry, header included, a multiple of 8
20      1     version (1)
21      1     flags (`Flags`)
22      2     columns: which columns the body holds; only the body's owner reads it
24      4     count: records in the entry
28      4     span: offsets the entry covers; equals count unless compacted
32      8     first timestamp, ms
40      8     last (greatest) timestamp, ms
48      8     producer id, -1 for none
56      4     first sequence of the producer, -1 for none
60      2     producer epoch, -1 for none
62      2     value type: only the body's owner reads it
======  ====  ==============================================================
"""

from __future__ import annotations

import enum
from struct import Struct
from typing import NamedTuple

from google_crc32c import extend, value

from nexo.errors import Corrupt

MAGIC = b"NX"
VERSION = 1
SIZE = 64
ALIGN = 8

_LAYOUT = Struct("<2sHIqIBBHIIqqqihH")
_PREFIX = Struct("<2sHIqIBBHIIqq")
"""The fields that storage looks at in every entry it walks over."""
EXTENT = Struct("<I4xIIqq")
"""Length, count, span and both timestamps, from `EXTENT_AT` on."""
EXTENT_AT = 16
_FLAGS_AT = 21
_BASE = Struct("<q")
_CHECK = Struct("<H")
assert _LAYOUT.size == SIZE
_new = tuple.__new__
"""Creates a named tuple in half the time that its class takes."""


class Flags(enum.IntFlag):
    """Facts about an entry that storage or every reader needs."""

    COMPRESSION = 0x03
    """Two bits: 0 none, 1 gzip, 2 lz4, 3 zstd; the body is compressed as a whole."""
    TRANSACTIONAL = 0x04
    """Part of a transaction: visible only once committed."""
    CONTROL = 0x08
    """Not for readers: a marker that its owner wrote into the log."""
    KAFKA = 0x10
    """The body is a Kafka record batch, as a client sent it."""
    SOUND = 0x20
    """All records of that batch were read once, so that its consumers can read them too."""
    SUMMED = 0x40
    """The body ends with its second sum (`nexo.storage.mending`)."""


class Header(NamedTuple):
    """One entry's header, decoded. The module's table explains the fields.

    A tuple, because one is made for every entry written or read.
    """

    base_offset: int
    length: int
    flags: int
    columns: int
    count: int  # type: ignore[assignment]  # hides the tuple's method, which nobody misses
    span: int
    first_ms: int
    last_ms: int
    producer_id: int
    sequence: int
    epoch: int
    value_type: int
    crc: int

    @property
    def next_offset(self) -> int:
        """One past the last offset that this entry covers."""
        return self.base_offset + self.span


def seal(
    body_parts: list[bytes],
    *,
    count: int,
    first_ms: int,
    last_ms: int,
    flags: int = 0,
    columns: int = 0,
    span: int | None = None,
    producer_id: int = -1,
    sequence: int = -1,
    epoch: int = -1,
    value_type: int = 0,
    base_offset: int = 0,
) -> bytearray:
    """The finished header for a body; the body must already be padded to `ALIGN`."""
    length = SIZE + sum(map(len, body_parts))
    head = bytearray(SIZE)
    _LAYOUT.pack_into(
        head, 0, MAGIC, 0, 0, base_offset, length, VERSION, flags, columns, count,
        count if span is None else span, first_ms, last_ms, producer_id, sequence, epoch,
        value_type,
    )  # fmt: skip
    crc = value(bytes(head[16:]))
    for part in body_parts:
        crc = extend(crc, part)
    head[4:8] = crc.to_bytes(4, "little")
    stamp(head, base_offset)
    return head


def stamp(head: bytearray | memoryview, base_offset: int) -> None:
    """Write the base offset, and the head check that covers it, into a sealed header."""
    _BASE.pack_into(head, 8, base_offset)
    _CHECK.pack_into(head, 2, value(bytes(head[4:SIZE])) & 0xFFFF)


def parse(data: bytes | bytearray | memoryview, at: int = 0) -> Header:
    """The header at ``at``; `Corrupt` if its magic, version, length or head check is wrong."""
    raw = bytes(data[at : at + SIZE])
    if len(raw) < SIZE:
        raise Corrupt(f"entry header cut short: {len(raw)} of {SIZE} bytes")
    magic, check, crc, base, length, version, flags, columns, count, span, first, last, \
        producer, sequence, epoch, value_type = _LAYOUT.unpack(raw)  # fmt: skip
    if magic != MAGIC:
        raise Corrupt(f"entry starts with {magic!r} instead of {MAGIC!r}")
    if check != value(raw[4:]) & 0xFFFF:
        raise Corrupt("entry header fails its check")
    if version != VERSION:
        raise Corrupt(f"entry version {version} is not known here")
    if length < SIZE or length % ALIGN or span < count or base < 0:
        raise Corrupt("malformed entry header")
    return _new(Header, (
        base, length, flags, columns, count, span, first, last, producer, sequence, epoch,
        value_type, crc,
    ))  # fmt: skip


def claimed_flags(entry: bytes) -> int:
    """The flags in the header of an entry that nobody has checked."""
    return entry[_FLAGS_AT] if len(entry) >= SIZE else 0


def verify(entry: bytes) -> Header:
    """Parse and check the whole of ``entry``, which must be exactly one entry."""
    header = parse(entry)
    if header.length != len(entry):
        raise Corrupt(f"entry of {header.length} bytes arrived as {len(entry)}")
    if value(entry[16:]) != header.crc:
        raise Corrupt(f"entry at offset {header.base_offset} fails its CRC")
    return header


# -- finding entries in raw bytes ------------------------------------------------


def head_at(data: bytes, at: int) -> Header | None:
    """The header at ``at`` if it is whole and passes its own check."""
    try:
        return parse(data, at)
    except Corrupt:
        return None


def body_sound(data: bytes, at: int, head: Header) -> bool:
    """Whether the whole entry lies in ``data`` and passes its CRC."""
    end = at + head.length
    return end <= len(data) and value(data[at + 16 : end]) == head.crc


def sound_run(data: bytes, offset: int, dense: bool) -> tuple[int, int, bool]:
    """Verify entries from the start of ``data``, the first of which should have ``offset``.

    Returns the length of the valid run, the offset after it, and whether the next entry is
    merely cut off by the end of ``data`` rather than damaged. ``dense`` forbids gaps.
    """
    at, size, unpack, crc32c = 0, len(data), _PREFIX.unpack_from, value
    while size - at >= SIZE:
        magic, check, crc, base, length, version, _, _, _, span, _, _ = unpack(data, at)
        if (
            magic != MAGIC
            or version != VERSION
            or (base != offset if dense else base < offset)
            or crc32c(data[at + 4 : at + SIZE]) & 0xFFFF != check
        ):
            return at, offset, False
        end = at + length
        if end > size:
            return at, offset, True
        if crc32c(data[at + 16 : end]) != crc:
            return at, offset, False
        at, offset = end, base + span
    return at, offset, True


def locate_in(data: bytes, offset: int, target: int, dense: bool) -> tuple[int, int] | None:
    """Position and base of the entry with ``target``, walking from the one with ``offset``.

    None if the walk meets damage or the end of ``data``. Bodies are not checked.
    """
    at, last, unpack, crc32c = 0, len(data) - SIZE, _PREFIX.unpack_from, value
    while at <= last:
        magic, check, _, base, length, _, _, _, _, span, _, _ = unpack(data, at)
        if magic != MAGIC or (base != offset if dense else base < offset):
            return None
        if crc32c(data[at + 4 : at + SIZE]) & 0xFFFF != check:
            return None
        offset = base + span
        if offset > target:
            return at, base
        at += length
    return None


def find_sound(data: bytes, at: int, lowest: int) -> tuple[int, Header] | None:
    """The first valid entry at or after ``at`` with an offset of at least ``lowest``."""
    at += -at % ALIGN
    while (at := data.find(MAGIC, at)) >= 0:
        if at % ALIGN == 0:
            head = head_at(data, at)
            if head and head.base_offset >= lowest and body_sound(data, at, head):
                return at, head
        at += 1
    return None
