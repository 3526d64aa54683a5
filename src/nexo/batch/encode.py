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

Entry: TypeAlias = tuple[bytearray, list[bytes]]
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
) -> Entry:
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
) -> Entry:
    """A batch of parallel lists; a single type or timestamp applies to all records."""
    if not values:
        raise InvalidInput("a batch needs at least one record")
    table = _Table(values, types, timestamps, keys, headers)
    first = timestamps if isinstance(timestamps, int) else timestamps[0]
    last = timestamps if isinstance(timestamps, int) else max(timestamps)
    body = table.body()
    if compression:
        body, flags = compress(compression, b"".join(body)), flags | compression
    head = seal(
        body, count=len(values), first_ms=first, last_ms=last, value_type=table.one_type,
        flags=flags, columns=table.columns,
        producer_id=producer.id, epoch=producer.epoch, sequence=producer.sequence,
    )  # fmt: skip
    return head, body


class _Table:
    """Collects the columns of a batch and records which are present."""

    def __init__(
        self,
        values: Sequence[bytes | None],
        types: int | Sequence[int],
        timestamps: int | Sequence[int],
        keys: Sequence[bytes | None] | None,
        headers: Sequence[bytes] | None,
    ) -> None:
        self.columns = 0
        self.one_type = types if isinstance(types, int) else _common(types, MIXED)
        self._count = len(values)
        self._timestamps = self._stamps(timestamps)
        self._values = self._nullable(values, Column.VALUE_NULLS)
        if not isinstance(types, int) and self.one_type == MIXED:
            self._values += padded(bytes(self._checked(types)))
            self.columns |= Column.VALUE_TYPES
        self._keys = self._key_columns(keys)
        self._headers = self._header_columns(headers)

    def body(self) -> list[bytes]:
        return [*self._timestamps, *self._values, *self._keys, *self._headers]

    def _checked(self, column: Sequence[int]) -> Sequence[int]:
        if len(column) != self._count:
            raise InvalidInput("the lists of a batch must be of one length")
        return column

    def _stamps(self, timestamps: int | Sequence[int]) -> list[bytes]:
        if isinstance(timestamps, int) or _common(self._checked(timestamps), None) is not None:
            return []
        self.columns |= Column.TIMESTAMPS
        return [int64s(timestamps)]

    def _nullable(self, values: Sequence[bytes | None], nulls: Column) -> list[bytes]:
        if None not in values:
            return strings(values)  # type: ignore[arg-type]
        self.columns |= nulls
        valid = bitmap((value is not None for value in values), self._count)
        return [*strings([value or b"" for value in values]), *padded(valid)]

    def _key_columns(self, keys: Sequence[bytes | None] | None) -> list[bytes]:
        if keys is None:
            return []
        if len(keys) != self._count:
            raise InvalidInput("the lists of a batch must be of one length")
        self.columns |= Column.KEYS
        valid = bitmap((key is not None for key in keys), self._count)
        return [*padded(valid), *strings([key or b"" for key in keys])]

    def _header_columns(self, headers: Sequence[bytes] | None) -> list[bytes]:
        if headers is None or not any(headers):
            return []
        if len(headers) != self._count:
            raise InvalidInput("the lists of a batch must be of one length")
        self.columns |= Column.HEADERS
        return strings(headers)


def _common(items: Sequence[int], otherwise: T) -> int | T:
    first = items[0]
    return first if items.count(first) == len(items) else otherwise
