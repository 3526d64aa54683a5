"""Messages between publishers and the stream broker, in transactions and outside.

==============  ===============================  =================================
opcode          request                          reply
==============  ===============================  =================================
S_PUBLISH       name str, `PARTITION`, a batch   `PLACE` per partition written
S_PUBLISH_EACH  name str, `PARTITION`, a batch   `PLACE`, and what was refused
S_ADD           name str, `PARTITION`, a value   `PLACE`
==============  ===============================  =================================

`PARTITION` is an i32: -1 lets the broker route by key, or round robin. Otherwise the low 16 bits
are the partition, and the bits above hold the partition count that the sender assumed, 0 if
unknown. If the stream has another count, the reply is `PartitionsChanged` and nothing is
stored: describe the stream, and choose again.

`PLACE` is ``partition u32, offset u64, count u32``: where records were stored.

S_PUBLISH_EACH is for unrelated records for one partition, as a client gathers them in one
loop turn. Those over the stream's limit are left out: the limit, u32, and the index of
each, u32, follow the place of the others. If none is left, the request is rejected.

Producers and transactions (SPEC G3, H1):

=============  ===================================  ===============
opcode         request                              reply
=============  ===================================  ===============
S_PRODUCER     name str                             `ProducerStart`
S_TX_BEGIN     `TxBegin`                            transaction id
S_TX_PUBLISH   transaction u64, then as S_PUBLISH   as S_PUBLISH
S_TX_INPUTS    `TxInputs`                           OK
S_TX_COMMIT    transaction id                       OK
S_TX_ABORT     transaction id                       OK
S_TX_OUTCOME   transaction id                       OK
=============  ===================================  ===============

A client that got no reply to S_TX_COMMIT sends S_TX_OUTCOME, on any connection: the reply
is sent once it is known, and is the same: OK, or `TransactionAborted`. Ids are never
reused.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from struct import Struct, error, pack, unpack

from nexo.errors import ProtocolError
from nexo.model import AsArray, AsMap, Buffer
from nexo.model.stream import KeyAt, TxAcks, TxOffsets
from nexo.protocol.frames import pack_str

PARTITION = Struct(">i")
PLACE = Struct(">IQI")
ROUTE = -1
"""Instead of a partition number: the broker picks by key, or round robin."""
_COUNT_SHIFT = 16
_PARTITION_MASK = (1 << _COUNT_SHIFT) - 1
_HEAD = Struct(">I")


def publish_head(stream: str, partition: int, count: int = 0) -> bytes:
    """Pack the head of S_PUBLISH and S_ADD, which precedes the batch or value.

    ``count`` is the partition count that the sender assumed.
    """
    return pack_str(stream) + PARTITION.pack(partition | count << _COUNT_SHIFT)


def read_publish(payload: memoryview) -> tuple[str, int, int, bytes]:
    """The stream's name, the partition, the assumed count or 0, and the batch or value."""
    try:
        at = _HEAD.size + _HEAD.unpack_from(payload)[0]
        (packed,) = PARTITION.unpack_from(payload, at)
        name = str(payload[_HEAD.size : at], "utf-8")
    except (error, UnicodeDecodeError):
        raise ProtocolError("a publish begins with the stream's name and partition") from None
    rest = bytes(payload[at + PARTITION.size :])
    if packed <= _PARTITION_MASK:
        return name, packed, 0, rest
    return name, packed & _PARTITION_MASK, packed >> _COUNT_SHIFT, rest


def pack_refused(limit: int, rows: Sequence[int]) -> bytes:
    """Pack the end of a reply to S_PUBLISH_EACH that left records out."""
    return pack(f">{1 + len(rows)}I", limit, *rows)


def read_each(payload: Buffer) -> tuple[int, int, int, int, tuple[int, ...]]:
    """Partition, first offset and count; then limit and indexes of the records left out."""
    try:
        place = PLACE.unpack_from(payload)
        limit, *rows = unpack(f">{(len(payload) - PLACE.size) // 4}I", payload[PLACE.size :])
    except (error, ValueError):
        raise ProtocolError("reply is cut short") from None
    return *place, limit, tuple(rows)


def read_places(payload: Buffer) -> Iterator[tuple[int, int, int]]:
    """The reply to S_PUBLISH or S_ADD: ``partition, offset, count`` of each place."""
    if len(payload) % PLACE.size:
        raise ProtocolError("reply is cut short")
    return PLACE.iter_unpack(payload)


__all__ = ["KeyAt", "TxAcks", "TxOffsets"]


class ProducerStart(AsArray, frozen=True):
    """The identity of an idempotent producer."""

    producer: int
    epoch: int


class TxBegin(AsMap, frozen=True):
    """Open a transaction, aborted automatically after ``timeout_ms``."""

    timeout_ms: int = 60_000


class TxInputs(AsMap, frozen=True):
    """Acks, offsets and keys that a transaction's outcome rests on."""

    transaction: int
    acks: list[TxAcks] = []
    offsets: list[TxOffsets] = []
    unchanged: list[KeyAt] = []
    """If one of these keys has another newest record by then, the commit is rejected."""
