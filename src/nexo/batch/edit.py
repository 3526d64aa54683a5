"""New batches from old ones: cut for a group, thinned by compaction, with adjusted times."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from nexo.batch.columns import (
    Column,
    Strings,
    cut_bitmap,
    int32s,
    int64s,
    padded,
    read_int32s,
    read_int64s,
)
from nexo.batch.compression import Compression, compress
from nexo.batch.encode import EntryParts, encode
from nexo.batch.view import Batch
from nexo.storage.header import Flags, parse, seal

_UNCOMPRESSED = ~int(Flags.COMPRESSION)  # a plain number: operators of an enum cost 1 µs each


def cut(batch: Batch, from_offset: int, to_offset: int) -> EntryParts | None:
    """The records from ``from_offset`` to before ``to_offset``; None if there are none.

    The columns are copied as they are; single records are not touched.
    """
    start, stop = batch.index_of(from_offset), batch.index_of(to_offset)
    if start >= stop:
        return None
    body = _cut_body(batch, start, stop)
    header, stamps = batch.header, batch.layout.timestamps
    dense = batch.layout.deltas < 0
    first, last = header.first_ms, header.first_ms
    if stamps >= 0:
        times = read_int64s(batch.body[stamps + 8 * start : stamps + 8 * stop])
        first, last = times[0], max(times)
    head = seal(
        body, count=stop - start, first_ms=first, last_ms=last, columns=header.columns,
        value_type=header.value_type, flags=header.flags & _UNCOMPRESSED,
        base_offset=header.base_offset + (start if dense else 0),
        span=stop - start if dense else min(header.span, to_offset - header.base_offset),
    )  # fmt: skip
    return head, body


def _cut_body(batch: Batch, start: int, stop: int) -> list[bytes]:
    at, n = batch.layout, stop - start

    def fixed(column: int, width: int) -> list[bytes]:
        begin = column + width * start
        return padded(bytes(batch.body[begin : begin + width * n]))

    body = [] if at.timestamps < 0 else fixed(at.timestamps, 8)
    body += _cut_strings(batch.body, at.values, start, stop)
    if at.value_valid >= 0:
        body += padded(cut_bitmap(batch.body[at.value_valid :], start, stop))
    if at.value_types >= 0:
        body += fixed(at.value_types, 1)
    if at.keys is not None:
        body += padded(cut_bitmap(batch.body[at.key_valid :], start, stop))
        body += _cut_strings(batch.body, at.keys, start, stop)
    if at.headers is not None:
        body += _cut_strings(batch.body, at.headers, start, stop)
    return body if at.deltas < 0 else body + fixed(at.deltas, 4)


def _cut_strings(body: memoryview, column: Strings, start: int, stop: int) -> list[bytes]:
    offsets = bytes(body[column.offsets + 4 * start : column.offsets + 4 * (stop + 1)])
    first, last = read_int32s(offsets[:4] + offsets[-4:])
    shift = column.content - column.first
    return [*padded(offsets), *padded(bytes(body[first + shift : last + shift]))]


def select(batch: Batch, indexes: Sequence[int]) -> EntryParts:
    """Only the records at ``indexes``, each at its own offset; the covered range stays.

    For compaction: producer and sequence stay, so that recovery still finds them.
    """
    stamps, values, types = batch.timestamps(), batch.values(), batch.types()
    keys, texts, deltas = batch.keys(), batch.headers(), batch.deltas
    head, body = encode(
        [values[i] for i in indexes],
        [types[i] for i in indexes],
        [stamps[i] for i in indexes],
        keys=[keys[i] for i in indexes] if batch.layout.keys is not None else None,
        headers=[texts[i] for i in indexes],
    )
    body += padded(int32s([deltas[i] for i in indexes]))
    return _resealed(batch, head, body, len(indexes))


def _resealed(batch: Batch, head: bytearray, body: list[bytes], count: int) -> EntryParts:
    old, new = batch.header, parse(head)
    sealed = seal(
        body, count=count, span=old.span, base_offset=old.base_offset, first_ms=new.first_ms,
        last_ms=new.last_ms, columns=new.columns | Column.DELTAS, value_type=new.value_type,
        flags=old.flags & _UNCOMPRESSED,
        producer_id=old.producer_id, epoch=old.epoch, sequence=old.sequence,
    )  # fmt: skip
    return sealed, body


def retime(batch: Batch, floor_ms: int, ceiling_ms: int) -> EntryParts:
    """The same records with timestamps that ascend and lie within the bounds."""
    header = batch.header
    stamps = [min(max(stamp, floor_ms), ceiling_ms) for stamp in batch.timestamps()]
    stamps = list(accumulate(stamps, max))
    body = [bytes(batch.body)]
    columns = header.columns & ~Column.TIMESTAMPS
    if batch.layout.timestamps >= 0:
        body = [bytes(batch.body[8 * len(stamps) :])]
    if stamps[0] != stamps[-1]:
        body, columns = [int64s(stamps), *body], columns | Column.TIMESTAMPS
    if kind := Compression(header.flags & Flags.COMPRESSION):
        body = compress(kind, b"".join(body))
    head = seal(
        body, count=header.count, span=header.span, first_ms=stamps[0], last_ms=stamps[-1],
        columns=columns, value_type=header.value_type, flags=header.flags,
        producer_id=header.producer_id, epoch=header.epoch, sequence=header.sequence,
    )  # fmt: skip
    return head, body
