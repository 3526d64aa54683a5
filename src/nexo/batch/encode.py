"""Encodes parallel lists as a batch.

Returns a sealed head and the parts of the body, never joined, because copying megabytes
costs more than writing many parts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias, TypeVar

from nexo.batch.columns import Column, bitmap, int64s, padded, strings
from nexo.batch.compression import Compression, compress
from nexo.errors import InvalidInput
from nexo.storage.header import seal

MIXED = 3
"""The header's value type when the types are a column."""

EntryParts: TypeAlias = tuple[bytearray, list[bytes]]
"""A sealed head and the parts of its body: what a log appends and a frame carries."""


class BatchProducer(NamedTuple):
    """The producer of a batch, for idempotence (SPEC G3)."""

    id: int = -1
    epoch: int = -1
    sequence: int = -1
    """The sequence of the batch's first record."""


ANONYMOUS = BatchProducer()

T = TypeVar("T")


def encode_plain(
    values: Sequence[bytes], value_type: int, now_ms: int, producer: BatchProducer = ANONYMOUS
) -> EntryParts:
    """The most common batch: values of one type, one timestamp, no keys, headers or nulls."""
    if not values:
        raise InvalidInput("a batch needs at least one record")
    body = strings(values)
    head = seal(
        body, count=len(values), first_ms=now_ms, last_ms=now_ms, value_type=value_type,
        producer_id=producer.id, epoch=producer.epoch, sequence=producer.sequence,
    )  # fmt: skip
    return head, body


def encode(
    values: Sequence[bytes | None],
    types: int | Sequence[int],
    timestamps: int | Sequence[int],
    *,
    keys: Sequence[bytes | None] | None = None,
    headers: Sequence[bytes] | None = None,
    producer: BatchProducer = ANONYMOUS,
    compression: Compression = Compression.NONE,
    flags: int = 0,
) -> EntryParts:
    """A batch of parallel lists; a single type or timestamp applies to all records."""
    if not values:
        raise InvalidInput("a batch needs at least one record")
    first = timestamps if isinstance(timestamps, int) else timestamps[0]
    last = timestamps if isinstance(timestamps, int) else max(timestamps)
    one_type, columns, body = _columns(values, types, timestamps, keys, headers)
    if compression:
        body, flags = compress(compression, b"".join(body)), flags | compression
    head = seal(
        body, count=len(values), first_ms=first, last_ms=last, value_type=one_type, flags=flags,
        columns=columns,
        producer_id=producer.id, epoch=producer.epoch, sequence=producer.sequence,
    )  # fmt: skip
    return head, body


def _columns(
    values: Sequence[bytes | None],
    types: int | Sequence[int],
    timestamps: int | Sequence[int],
    keys: Sequence[bytes | None] | None,
    headers: Sequence[bytes] | None,
) -> tuple[int, int, list[bytes]]:
    """The type of all values or `MIXED`, which optional columns there are, and the body."""
    count, columns, body = len(values), 0, list[bytes]()
    if not isinstance(timestamps, int) and _common(_checked(timestamps, count), None) is None:
        columns |= Column.TIMESTAMPS
        body.append(int64s(timestamps))
    if None in values:
        columns |= Column.VALUE_NULLS
        body += [*strings([value or b"" for value in values]), *_validity(values)]
    else:
        body += strings(values)  # type: ignore[arg-type]
    one_type = types if isinstance(types, int) else _common(types, MIXED)
    if not isinstance(types, int) and one_type == MIXED:
        columns |= Column.VALUE_TYPES
        body += padded(bytes(_checked(types, count)))
    if keys is not None:
        columns |= Column.KEYS
        body += [*_validity(_checked(keys, count)), *strings([key or b"" for key in keys])]
    if headers is not None and any(headers):
        columns |= Column.HEADERS
        body += strings(_checked(headers, count))
    return one_type, columns, body


def _checked(column: Sequence[T], count: int) -> Sequence[T]:
    if len(column) != count:
        raise InvalidInput("the lists of a batch must be of one length")
    return column


def _validity(items: Sequence[bytes | None]) -> list[bytes]:
    return padded(bitmap((item is not None for item in items), len(items)))


def _common(items: Sequence[int], otherwise: T) -> int | T:
    first = items[0]
    return first if items.count(first) == len(items) else otherwise
