"""Encodes our batches as Kafka's, for its clients; see `nexo.batch.kafka`."""

from __future__ import annotations

from itertools import repeat
from typing import Any

import msgspec
from google_crc32c import value as crc32c

from nexo.batch.kafka import CONTROL, HEAD, MAGIC, TRANSACTIONAL
from nexo.batch.view import Batch

_headers_of = msgspec.json.Decoder(dict[str, Any]).decode
_json = msgspec.json.encode
_NOTHING = b"\x01"
_ABORT_MARKER = (b"\x00\x00\x00\x00", b"\x00\x00\x00\x00\x00\x00")
"""Key and value of the control record that ends a transaction that was rolled back."""


def _varint(value: int) -> bytes:
    value = (value << 1) ^ (value >> 63)
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


_SMALL = [_varint(value) for value in range(16_384)]
_PLENTY = len(_SMALL)


def _number(value: int) -> bytes:
    return _SMALL[value] if 0 <= value < _PLENTY else _varint(value)


def to_kafka(batch: Batch) -> bytes:
    """A batch as Kafka clients read it, with every record at its offset."""
    header = batch.header
    first_ms = header.first_ms
    keys = batch.keys() if batch.layout.keys is not None else repeat(None)
    headers = batch.headers() if batch.layout.headers is not None else repeat(b"")
    records = bytearray()
    for stamp_ms, delta, key, value, text in zip(
        batch.timestamps(), batch.deltas, keys, batch.values(), headers, strict=False
    ):
        records += _record(stamp_ms - first_ms, delta, key, value, text)
    return _sealed(
        header.base_offset, header.span, header.count, first_ms, header.last_ms, 0, bytes(records)
    )


def gap(base_offset: int, span: int) -> bytes:
    """A marker for offsets that hold no records, so that readers skip them."""
    key, value = _ABORT_MARKER
    record = _record(0, span - 1, key, value, b"")
    return _sealed(base_offset, span, 1, 0, 0, TRANSACTIONAL | CONTROL, record)


def _record(
    delta_ms: int, delta: int, key: bytes | None, value: bytes | None, text: bytes
) -> bytes:
    content = b"".join((
        b"\x00", _number(delta_ms), _number(delta),
        _NOTHING if key is None else _number(len(key)) + key,
        _NOTHING if value is None else _number(len(value)) + value,
        _headers(text) if text else b"\x00",
    ))  # fmt: skip
    return _number(len(content)) + content


def _headers(text: bytes) -> bytes:
    found = _headers_of(text)
    parts = [_number(len(found))]
    for name, value in found.items():
        raw = name.encode()
        parts += (_number(len(raw)), raw)
        if value is None:
            parts.append(_NOTHING)
        else:
            content = value.encode() if isinstance(value, str) else _json(value)
            parts += (_number(len(content)), content)
    return b"".join(parts)


def _sealed(
    base: int, span: int, count: int, first_ms: int, last_ms: int, attributes: int, records: bytes
) -> bytes:
    head = bytearray(HEAD.size)
    length = HEAD.size - 12 + len(records)
    fields = (attributes, span - 1, first_ms, last_ms, -1, -1, -1, count)
    HEAD.pack_into(head, 0, base, length, 0, MAGIC, 0, *fields)
    batch = bytes(head[21:]) + records
    HEAD.pack_into(head, 0, base, length, 0, MAGIC, crc32c(batch), *fields)
    return bytes(head[:21]) + batch
