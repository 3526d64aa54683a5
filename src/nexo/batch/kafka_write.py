"""Encodes our batches as Kafka's, for its clients; see `nexo.batch.kafka`."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from itertools import repeat
from typing import Any, TypeAlias

import msgspec
from google_crc32c import value as crc32c

from nexo.batch.kafka import CONTROL, HEAD, MAGIC, TRANSACTIONAL
from nexo.batch.varint import varint
from nexo.batch.view import Batch

_headers_of = msgspec.json.Decoder(dict[str, Any]).decode
_json = msgspec.json.encode
_NOTHING = b"\x01"

KafkaRow: TypeAlias = tuple[int, int, bytes | None, bytes | None, bytes]
"""Time, distance from the base offset, key, value, headers as JSON text."""

_ABORT_MARKER = (b"\x00\x00\x00\x00", b"\x00\x00\x00\x00\x00\x00")
"""Key and value of the control record that ends a transaction that was rolled back."""
_PLENTY = 16_384


@cache
def _small() -> list[bytes]:
    """Encoded numbers below `_PLENTY`, made for the first Kafka client that reads."""
    return [varint(value) for value in range(_PLENTY)]


def _number(value: int) -> bytes:
    return _small()[value] if 0 <= value < _PLENTY else varint(value)


def to_kafka(batch: Batch) -> bytes:
    """A batch as Kafka clients read it, with every record at its offset."""
    header = batch.header
    first_ms = header.first_ms
    keys = batch.keys() if batch.layout.keys is not None else repeat(None)
    headers = batch.headers() if batch.layout.headers is not None else repeat(b"")
    rows = zip(batch.timestamps(), batch.deltas, keys, batch.values(), headers, strict=False)
    records = _records(rows, first_ms)
    return _sealed(
        header.base_offset, header.span, header.count, first_ms, header.last_ms, 0, records
    )


def _records(rows: Iterable[KafkaRow], first_ms: int) -> bytes:
    """Records one after another; runs once per record, so most numbers are looked up in place."""
    parts: list[bytes] = []
    add, small = parts.append, _small()
    for stamp_ms, delta, key, value, text in rows:
        ms = stamp_ms - first_ms
        content = b"".join((
            b"\x00",
            small[ms] if 0 <= ms < _PLENTY else varint(ms),
            small[delta] if delta < _PLENTY else varint(delta),
            _NOTHING if key is None else _number(len(key)) + key,
            _NOTHING if value is None else _number(len(value)) + value,
            _headers(text) if text else b"\x00",
        ))  # fmt: skip
        size = len(content)
        add(small[size] if size < _PLENTY else varint(size))
        add(content)
    return b"".join(parts)


def gap(base_offset: int, span: int) -> bytes:
    """A marker for offsets that hold no records, so that readers skip them."""
    key, value = _ABORT_MARKER
    records = _records([(0, span - 1, key, value, b"")], 0)
    return _sealed(base_offset, span, 1, 0, 0, TRANSACTIONAL | CONTROL, records)


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
