"""What the store saves: chunks of keys, each an entry of `nexo.storage.header`.

A chunk's base offset is the number of keys before it. The last entry is empty, has the
CONTROL flag, and its base offset is the number of all keys; without it the file is
incomplete. Due times are absolute, so that a restart does not extend a TTL.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

import msgspec

from nexo.brokers.store.engine import StoreEngine
from nexo.brokers.store.values import ListValue, MapValue, SetValue, StoreValue, value_bytes
from nexo.storage.header import ALIGN, SIZE, Flags, seal
from nexo.storage.mending import SUM_BYTES, second_sum

CHUNK_KEYS = 1_000
CHUNK_BYTES = 1 << 20
_LENGTH_BYTES = 8


class Row(msgspec.Struct, array_like=True):
    """One key: ``content`` is a plain value's bytes, a map's fields, or items."""

    key: str
    due_ms: int | None
    kind: str
    content: bytes | dict[str, bytes] | list[bytes]


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[Row]).decode


def take_rows(store: StoreEngine, cursor: str) -> list[Row]:
    """The next rows of keys after ``cursor``, few enough to encode in a millisecond or two.

    One collection is one row, however large it is.
    """
    rows: list[Row] = []
    keyspace = store.keyspace
    size = 0
    for key in islice(keyspace.index.walk(cursor), CHUNK_KEYS):
        value = keyspace.held(key)
        rows.append(_row(key, keyspace.expiry.due.get(key), value))
        size += len(key) + value_bytes(value)
        if size >= CHUNK_BYTES:
            break
    return rows


def _row(key: str, due_ms: int | None, value: StoreValue) -> Row:
    match value:
        case bytes():
            return Row(key, due_ms, "value", value)
        case MapValue():
            return Row(key, due_ms, value.kind, value.items)
        case _:
            return Row(key, due_ms, value.kind, list(value.items))


def put_row(store: StoreEngine, row: Row, now_ms: int) -> None:
    """Restore a saved key, unless it has expired since."""
    if row.due_ms is not None and row.due_ms <= now_ms:
        return
    store.keyspace.put(row.key, _value(row))
    if row.due_ms is not None:
        store.keyspace.expiry.set(row.key, row.due_ms)


def _value(row: Row) -> StoreValue:
    match row.kind, row.content:
        case "value", bytes() as value:
            return value
        case "map", dict() as fields:
            made = MapValue()
            for field, value in fields.items():
                made.put(field, value)
            return made
        case "list", list() as values:
            items = ListValue()
            items.push(values, left=False)
            return items
        case "set", list() as values:
            members = SetValue()
            members.add(values)
            return members
    raise msgspec.ValidationError(f"a {row.kind!r} cannot hold {type(row.content).__name__}")


def encode_chunk(rows: Sequence[Row], before: int, now_ms: int) -> bytes:
    """An entry with ``rows``; ``before`` is the number of rows in the entries before it."""
    raw = _encode(rows)
    body = len(raw).to_bytes(_LENGTH_BYTES, "little") + raw
    body += bytes(-(len(body) + SUM_BYTES) % ALIGN)
    body += second_sum(body)
    head = seal(
        [body], count=len(rows), first_ms=now_ms, last_ms=now_ms, flags=Flags.SUMMED,
        base_offset=before,
    )  # fmt: skip
    return bytes(head) + body


def encode_end(total: int, now_ms: int) -> bytes:
    """The entry that ends a complete file of ``total`` rows."""
    return bytes(
        seal([], count=0, first_ms=now_ms, last_ms=now_ms, flags=Flags.CONTROL, base_offset=total)
    )


def decode_chunk(entry: bytes) -> list[Row]:
    """The rows of a verified entry that is not the last."""
    start = SIZE + _LENGTH_BYTES
    length = int.from_bytes(entry[SIZE:start], "little")
    return _decode(entry[start : start + length])
