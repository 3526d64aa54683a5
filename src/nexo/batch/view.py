"""A batch whose columns are decoded on access."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import pairwise, repeat
from operator import sub
from typing import Any, NamedTuple, TypeAlias

from nexo.batch.columns import Layout, Strings, read_bitmap, read_int32s, read_int64s
from nexo.batch.compression import MAX_BODY_BYTES, Compression, decompress
from nexo.batch.kafka import check_kafka, native
from nexo.errors import Corrupt, PayloadTooLarge
from nexo.model import Buffer
from nexo.storage import header as head_format
from nexo.storage.header import SIZE, Flags, Header

MAX_RECORDS = 1_000_000
"""Records that a batch from outside may have: each costs memory and time to decode."""
_COMPRESSION, _KAFKA = int(Flags.COMPRESSION), int(Flags.KAFKA)
_new = tuple.__new__
"""Creates a named tuple in half the time that its class takes."""


BatchRow: TypeAlias = tuple[int, int, bytes | None, bytes | None, int, bytes]


class BatchRecord(NamedTuple):
    """One record of a batch, still encoded."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    value_type: int
    headers: bytes


class Batch:
    """A view of one batch. Columns are decoded on access.

    Building one from untrusted bytes is safe: `Corrupt` says what is malformed.
    """

    is_kafka = False
    """Whether it is still as a Kafka client sent it: no column was accessed yet."""

    def __init__(self, header: Header, body: Buffer, max_bytes: int = MAX_BODY_BYTES) -> None:
        self.header = header
        kind = header.flags & _COMPRESSION
        self.body = memoryview(decompress(Compression(kind), body, max_bytes) if kind else body)
        self.layout = Layout(header, self.body)

    def __len__(self) -> int:
        return self.header.count

    @property
    def base_offset(self) -> int:
        """The offset of the first record, unless compaction removed it."""
        return self.header.base_offset

    @cached_property
    def deltas(self) -> Sequence[int]:
        """Each record's distance from the base offset."""
        at = self.layout.deltas
        if at < 0:
            return range(self.header.count)
        return read_int32s(self.body[at : at + 4 * self.header.count])

    @property
    def offsets(self) -> Sequence[int]:
        base, count = self.header.base_offset, self.header.count
        if self.layout.deltas < 0:
            return range(base, base + count)
        return [base + delta for delta in self.deltas]

    def index_of(self, offset: int) -> int:
        """The index of the first record at or after ``offset``."""
        delta = offset - self.header.base_offset
        if self.layout.deltas < 0:
            return min(max(delta, 0), self.header.count)
        return bisect_left(self.deltas, delta)

    def values(self) -> list[bytes | None]:
        """Every value's content, without a type byte; None for a tombstone."""
        found: list[bytes | None] = list(self._strings(self.layout.values))
        return self._masked(found, self.layout.value_valid)

    def types(self) -> Sequence[int]:
        """Every value's type (`nexo.protocol.values.ValueType`)."""
        at, count = self.layout.value_types, self.header.count
        if at < 0:
            return [self.header.value_type] * count
        return bytes(self.body[at : at + count])

    def keys(self) -> list[bytes | None]:
        """Every key; None for a record without."""
        if self.layout.keys is None:
            return [None] * self.header.count
        found: list[bytes | None] = list(self._strings(self.layout.keys))
        return self._masked(found, self.layout.key_valid)

    def headers(self) -> list[bytes]:
        """Every record's headers as JSON text; empty for none."""
        if self.layout.headers is None:
            return [b""] * self.header.count
        return self._strings(self.layout.headers)

    def timestamps(self) -> Sequence[int]:
        at, count = self.layout.timestamps, self.header.count
        if at < 0:
            return [self.header.first_ms] * count
        return read_int64s(self.body[at : at + 8 * count])

    def records(self) -> Iterator[BatchRecord]:
        return map(_new, repeat(BatchRecord), self.rows())

    def rows(self) -> Iterator[BatchRow]:
        """Every record as a plain tuple with the fields of `BatchRecord`: half the time."""
        return zip(
            self.offsets, self.timestamps(), self.keys(), self.values(), self.types(),
            self.headers(), strict=True,
        )  # fmt: skip

    def value(self, index: int) -> bytes | None:
        if not self._valid(self.layout.value_valid, index):
            return None
        return self._string(self.layout.values, index)

    def key(self, index: int) -> bytes | None:
        if self.layout.keys is None or not self._valid(self.layout.key_valid, index):
            return None
        return self._string(self.layout.keys, index)

    def largest_value(self) -> int:
        offsets = self._offsets(self.layout.values)
        return max(map(sub, offsets[1:], offsets), default=0)

    def times_ascend(self) -> bool:
        """Whether no record is older than the one before it, within the header's times."""
        first_ms, last_ms = self.header.first_ms, self.header.last_ms
        if self.layout.timestamps < 0:
            return first_ms == last_ms
        stamps = list(self.timestamps())
        return first_ms <= stamps[0] and stamps[-1] <= last_ms and sorted(stamps) == stamps

    def check(self) -> None:
        """Check every offset, so that no reader leaves a column.

        Called once, where a batch enters: later readers rely on it. `Corrupt` if one is bad.
        """
        columns = (self.layout.values, self.layout.keys, self.layout.headers)
        for column in columns:
            if column is None:
                continue
            offsets = self._offsets(column)
            if sorted(offsets) != offsets:
                raise Corrupt("a column's offsets go backwards")
        if self.layout.deltas >= 0 and not self._deltas_ascend():
            raise Corrupt("the batch's offset deltas do not ascend within its span")

    def _deltas_ascend(self) -> bool:
        steps = [-1, *self.deltas, self.header.span]
        return all(low < high for low, high in pairwise(steps))

    def _offsets(self, column: Strings) -> list[int]:
        end = column.offsets + 4 * (self.header.count + 1)
        return read_int32s(self.body[column.offsets : end])

    def _strings(self, column: Strings) -> list[bytes]:
        content = bytes(self.body[column.content : column.content + column.size])
        ends = self._offsets(column)
        if column.first:
            ends = [end - column.first for end in ends]
        return [content[start:end] for start, end in pairwise(ends)]

    def _string(self, column: Strings, index: int) -> bytes:
        at = column.offsets + 4 * index
        start, end = read_int32s(self.body[at : at + 8])
        shift = column.content - column.first
        return bytes(self.body[start + shift : end + shift])

    def _masked(self, items: list[bytes | None], valid_at: int) -> list[bytes | None]:
        if valid_at < 0:
            return items
        bits = self.body[valid_at : valid_at + (self.header.count + 7) // 8]
        valid = read_bitmap(bits, len(items))
        return [item if bit == "1" else None for item, bit in zip(items, valid, strict=True)]

    def _valid(self, valid_at: int, index: int) -> bool:
        return valid_at < 0 or bool(self.body[valid_at + index // 8] >> index % 8 & 1)


class KafkaBatch(Batch):
    """A batch that a Kafka client sent, converted to columns when the first one is accessed.

    A class of its own: `__getattr__` would slow down every access to an ordinary batch.
    """

    is_kafka = True

    def __init__(self, header: Header, body: Buffer, max_bytes: int) -> None:
        self.header = header
        self._kafka = body, max_bytes

    def __getattr__(self, name: str) -> Any:
        if name not in ("body", "layout"):
            raise AttributeError(name)
        self.header, entry = native(self.header, *self._kafka)
        self.is_kafka = False
        self.body = memoryview(entry)[SIZE:]
        self.layout = Layout(self.header, self.body)
        return self.__dict__[name]


def _view(header: Header, body: Buffer, max_bytes: int) -> Batch:
    return (KafkaBatch if header.flags & _KAFKA else Batch)(header, body, max_bytes)


def decode(entry: Buffer, max_bytes: int = MAX_BODY_BYTES) -> Batch:
    """The batch in ``entry``, which must be exactly one entry; its CRC is not checked."""
    header = head_format.parse(entry)
    if header.length != len(entry):
        raise Corrupt(f"batch of {header.length} bytes arrived as {len(entry)}")
    return _view(header, memoryview(entry)[SIZE:], max_bytes)


def verify(entry: bytes, max_bytes: int = MAX_BODY_BYTES, max_records: int = MAX_RECORDS) -> Batch:
    """`decode`, with the CRC and every column checked: for bytes from outside.

    `PayloadTooLarge`, before anything is unpacked, for more records or bytes than allowed.
    """
    header = head_format.verify(entry)
    if header.count > max_records:
        raise PayloadTooLarge(
            f"a batch of {header.count:,} records: must be at most {max_records:,}; send several"
        )
    batch = _view(header, memoryview(entry)[SIZE:], max_bytes)
    if batch.is_kafka:
        check_kafka(header, memoryview(entry)[SIZE:])
    else:
        batch.check()
    return batch


def entries(data: Buffer) -> Iterator[memoryview]:
    """The entries that follow one another in ``data``."""
    view, at = memoryview(data), 0
    while at < len(view):
        length = head_format.parse(view, at).length
        if at + length > len(view):
            raise Corrupt(f"batch of {length} bytes is cut short")
        yield view[at : at + length]
        at += length
