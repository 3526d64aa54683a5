"""Batches into partitions: check, route, append."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from nexo.batch import MIXED, Batch, decode, encode, verify
from nexo.batch.partitions import partition_of
from nexo.brokers.stream.partition import check_size, check_sizes
from nexo.brokers.stream.registry import OpenStream
from nexo.brokers.stream.transactions import OpenTransaction
from nexo.errors import Fenced, InvalidInput, OutOfOrderSequence
from nexo.storage.header import Flags

ROUTE = -1
"""Instead of a partition number: the broker picks by key, or round robin."""
MAX_PUBLISHED_BYTES = 64 * 1024**2
"""The maximum size of a compressed batch after unpacking."""
_KNOWN_TYPES = bytes(range(MIXED))
_CONTROL, _TRANSACTIONAL = int(Flags.CONTROL), int(Flags.TRANSACTIONAL)


class Placed(NamedTuple):
    """Where a batch was stored."""

    partition: int
    offset: int
    count: int  # type: ignore[assignment]  # hides the tuple's method
    new: bool
    """False if its idempotent producer had sent it before."""


def publish(
    stream: OpenStream,
    index: int,
    entry: bytes,
    now_ms: int,
    transaction: OpenTransaction | None,
    placed: list[Placed],
) -> None:
    """Store a batch from outside; in more than one partition only if it was to be routed.

    Everything is checked before anything is stored; ``placed`` receives what was stored, even
    if the disk rejects the rest.
    """
    batch = verify(entry, MAX_PUBLISHED_BYTES)
    check_sizes(batch, stream.options.max_message_bytes)
    _check_flags(batch, transaction)
    if not batch.is_kafka:
        _check_types(batch)
    if index != ROUTE:
        placed.append(_append(stream, index, entry, batch, now_ms, transaction))
        return
    if batch.header.producer_id >= 0:
        raise InvalidInput("an idempotent producer must name the partition of each batch")
    for target, part, found in _routed(stream, entry, batch):
        placed.append(_append(stream, target, part, found, now_ms, transaction))


def is_stored(stream: OpenStream, index: int, entry: bytes) -> bool:
    """Whether a partition has a batch already, as its idempotent producer sent it before."""
    header = verify(entry, MAX_PUBLISHED_BYTES).header
    if header.producer_id < 0 or not 0 <= index < stream.options.partitions:
        return False
    try:
        return stream.partition(index).producers.check(header) is not None
    except (Fenced, OutOfOrderSequence):
        return False


def fitting(stream: OpenStream, entry: bytes) -> tuple[bytes, list[int]]:
    """A batch without records over the stream's limit, and the indexes of those.

    `PayloadTooLarge` if no record is left, or the batch must stay as its producer made it.
    """
    batch, limit = verify(entry, MAX_PUBLISHED_BYTES), stream.options.max_message_bytes
    sizes = [0 if value is None else len(value) for value in batch.values()]
    kept = [row for row, size in enumerate(sizes) if size <= limit]
    if not kept or batch.header.producer_id >= 0:
        check_size(max(sizes), limit)
    return _picked(batch, kept), [row for row, size in enumerate(sizes) if size > limit]


def _check_flags(batch: Batch, transaction: OpenTransaction | None) -> None:
    flags = batch.header.flags
    if flags & _CONTROL:
        raise InvalidInput("a batch from a client cannot be a control batch")
    if bool(flags & _TRANSACTIONAL) != (transaction is not None):
        raise InvalidInput(
            "a batch must be flagged transactional within a transaction, and only then"
        )


def _check_types(batch: Batch) -> None:
    """Reject unknown value types: readers and the lake would fail on each such record."""
    at, kind = batch.layout.value_types, batch.header.value_type
    if at < 0 and kind < MIXED:
        return
    types = bytes(batch.body[at : at + len(batch)]) if at >= 0 else b""
    if at < 0 or kind > MIXED or types.translate(None, _KNOWN_TYPES):
        raise InvalidInput("a value's type must be 0 (bytes), 1 (text) or 2 (JSON)")


def _append(
    stream: OpenStream,
    index: int,
    entry: bytes,
    batch: Batch,
    now_ms: int,
    transaction: OpenTransaction | None,
) -> Placed:
    partition = stream.partition(index)
    offset, new = partition.append(entry, batch, now_ms)
    if new and transaction is not None:
        partition.hold(transaction.id, offset, offset + len(batch))
        transaction.touched[stream.id, index] = stream
    return Placed(index, offset, len(batch), new)


def _routed(stream: OpenStream, entry: bytes, batch: Batch) -> Iterable[tuple[int, bytes, Batch]]:
    """The batch split by partition; whole if it has no keys."""
    count = stream.options.partitions
    if count == 1 or batch.layout.keys is None:
        return [(stream.next_partition() if count > 1 else 0, entry, batch)]
    by_partition: dict[int, list[int]] = {}
    for i, key in enumerate(batch.keys()):
        target = stream.next_partition() if key is None else partition_of(key, count)
        by_partition.setdefault(target, []).append(i)
    parts = ((target, _picked(batch, rows)) for target, rows in by_partition.items())
    return [(target, part, decode(part)) for target, part in parts]


def _picked(batch: Batch, rows: list[int]) -> bytes:
    values, types, stamps = batch.values(), batch.types(), batch.timestamps()
    keys, headers = batch.keys(), batch.headers()
    head, body = encode(
        [values[i] for i in rows],
        [types[i] for i in rows],
        [stamps[i] for i in rows],
        keys=[keys[i] for i in rows],
        headers=[headers[i] for i in rows],
        flags=batch.header.flags & ~Flags.COMPRESSION,
    )
    return bytes(head) + b"".join(body)
