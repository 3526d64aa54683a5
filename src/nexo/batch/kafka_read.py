"""Reads the records of Kafka's batches, unpacked, into parallel lists; see `nexo.batch.kafka`.

A record is its size, a byte of attributes, its time and offset as distances from the batch's, key,
value and headers. Numbers are signed and of variable size, so that -1 and lengths up to 63 take a
byte. This runs once per record of every batch that a native client reads: numbers of one and two
bytes are read in place, and headers that repeat are read once.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

import msgspec

from nexo.batch.varint import read_unsigned

TYPE_HEADER = "nexo-type"
"""Names the type of a value that is not bytes; written by `nexo.topics` on Kafka clusters."""
_TYPES = {b"0": 0, b"1": 1, b"2": 2}
_json = msgspec.json.encode

TypeAndHeaders: TypeAlias = tuple[int, bytes]
"""The value's type, and the headers as JSON text."""


class Rows(NamedTuple):
    """The records of a batch as parallel lists."""

    values: list[bytes | None]
    types: int | list[int]
    """One for all, or one each."""
    stamps: list[int]
    keys: list[bytes | None]
    headers: list[bytes] | None


def read_records(data: bytes, count: int, first_ms: int) -> Rows:  # noqa: PLR0912, PLR0915 - see above
    """All records; `ValueError` or `IndexError` if they are malformed.

    A field that runs past the end is found at the end of its record, or of the last one.
    """
    values: list[bytes | None] = []
    stamps: list[int] = []
    keys: list[bytes | None] = []
    headed: list[tuple[int, TypeAndHeaders]] = []
    seen: dict[bytes, TypeAndHeaders] = {}
    add_value, add_stamp, add_key = values.append, stamps.append, keys.append
    at = 0
    for index in range(count):
        length = data[at]
        at += 1
        if length > 0x7F:
            more = data[at]
            at += 1
            length += (more << 7) - 0x80
            if more > 0x7F:
                length, at = read_unsigned(data, at - 2)
        end = at + (length >> 1)
        number = data[at + 1]
        at += 2
        if number > 0x7F:
            number, at = read_unsigned(data, at - 1)
        add_stamp(first_ms + ((number >> 1) ^ -(number & 1)))
        while data[at] > 0x7F:  # the offset, which is known
            at += 1
        size = data[at + 1]
        at += 2
        if size > 0x7F:
            size, at = read_unsigned(data, at - 1)
        if size & 1:
            add_key(None)
        else:
            stop = at + (size >> 1)
            add_key(data[at:stop])
            at = stop
        size = data[at]
        at += 1
        if size > 0x7F:
            more = data[at]
            at += 1
            size += (more << 7) - 0x80
            if more > 0x7F:
                size, at = read_unsigned(data, at - 2)
        if size & 1:
            add_value(None)
        else:
            stop = at + (size >> 1)
            add_value(data[at:stop])
            at = stop
        if data[at]:
            raw = data[at:end]
            if raw not in seen:
                seen[raw] = _headers(raw)
            headed.append((index, seen[raw]))
            at += len(raw)
        else:
            at += 1
        if at != end or length & 1:
            raise ValueError("a record is longer or shorter than its length")
    if at != len(data):
        raise ValueError("there are bytes after the last record")
    types, headers = _spread(headed, count)
    return Rows(values, types, stamps, keys, headers)


def _spread(
    headed: list[tuple[int, TypeAndHeaders]], count: int
) -> tuple[int | list[int], list[bytes] | None]:
    """Types and headers of all records; those without headers have the defaults."""
    if not headed:
        return 0, None
    types, headers = [0] * count, [b""] * count
    for index, found in headed:
        types[index], headers[index] = found
    return types, headers


def _headers(data: bytes) -> TypeAndHeaders:
    """The headers in ``data``, which holds nothing else."""
    count, at = read_unsigned(data, 0)
    if count & 1 or count >> 1 > len(data):
        raise ValueError("there are more headers than bytes")
    found: dict[str, Any] = {}
    kind = 0
    for _ in range(count >> 1):
        name, at = _bytes(data, at)
        raw, at = _bytes(data, at)
        text = (name or b"").decode(errors="replace")
        if text == TYPE_HEADER and raw in _TYPES:
            kind = _TYPES[raw]
        else:
            found[text] = None if raw is None else raw.decode(errors="replace")
    if at != len(data):
        raise ValueError("headers do not end with their record")
    return kind, _json(found) if found else b""


def _bytes(data: bytes, at: int) -> tuple[bytes | None, int]:
    size, at = read_unsigned(data, at)
    if size & 1:
        return None, at
    end = at + (size >> 1)
    return data[at:end], end
