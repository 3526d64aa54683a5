"""Kafka's record batches (its format 2) as bodies of our entries, kept as they came (SPEC L3).

An entry with the flag `Flags.KAFKA` holds one such batch, padded to 8 bytes, instead of columns.
Its head is like any other entry's, so that logs, producers and transactions need not tell them
apart. Kafka's own base offset and leader epoch lie outside its CRC and are stamped when a Kafka
client reads the batch. For everyone else `native` converts it to columns.

======  ====  =========================================================
offset  size  field (big-endian)
======  ====  =========================================================
0       8     base offset
8       4     length of what follows this field
12      4     partition leader epoch
16      1     magic (2)
17      4     CRC32C over everything after it
21      2     attributes: 0-2 compression, 3 time of append, 4 transactional, 5 control
23      4     last offset delta
27      8     base timestamp
35      8     greatest timestamp
43      8     producer id
51      2     producer epoch
53      4     first sequence
57      4     count of records
61            records, perhaps compressed as a whole
======  ====  =========================================================
"""

from __future__ import annotations

from itertools import accumulate
from struct import Struct
from typing import NamedTuple

import msgspec
from google_crc32c import value as crc32c

from nexo.batch.compression import MAX_BODY_BYTES, unpack_kafka
from nexo.batch.encode import ANONYMOUS, BatchProducer, EntryParts, encode
from nexo.batch.kafka_read import Rows, read_records
from nexo.errors import Corrupt, InvalidInput, NexoError
from nexo.model import Buffer
from nexo.storage.header import ALIGN, Flags, Header, parse, seal, stamp

HEAD = Struct(">qiibIhiqqqhii")
HEAD_SIZE = HEAD.size
MAGIC = 2
LENGTH_BEFORE = 12
CRC_FROM = 21
COMPRESSION, LOG_APPEND_TIME, TRANSACTIONAL, CONTROL = 0x07, 0x08, 0x10, 0x20
_NOT_KAFKA = ~int(Flags.KAFKA | Flags.SOUND)
_WRAPPED = int(Flags.KAFKA | Flags.SOUND)
_OF_A_TRANSACTION = _WRAPPED | int(Flags.TRANSACTIONAL)
_json = msgspec.json.encode


class KafkaHead(NamedTuple):
    """The head of one of Kafka's batches."""

    base_offset: int
    length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_delta: int
    first_ms: int
    last_ms: int
    producer_id: int
    epoch: int
    sequence: int
    count: int  # type: ignore[assignment]  # hides the tuple's method

    @property
    def size(self) -> int:
        """The size of the whole batch."""
        return self.length + LENGTH_BEFORE

    @property
    def producer(self) -> BatchProducer:
        """The idempotent producer; without an id, epoch and sequence mean nothing."""
        if self.producer_id < 0:
            return ANONYMOUS
        return BatchProducer(self.producer_id, self.epoch, self.sequence)


def parse_kafka(data: Buffer) -> KafkaHead:
    """The head of a batch; `Corrupt` if it is malformed."""
    if len(data) < HEAD_SIZE:
        raise Corrupt(f"a Kafka batch of {len(data)} bytes has no whole head")
    head = KafkaHead._make(HEAD.unpack_from(data))
    if head.magic != MAGIC:
        raise Corrupt(f"Kafka's message format {head.magic} is not known here: use format 2")
    if not HEAD_SIZE <= head.size <= len(data):
        raise Corrupt(f"a Kafka batch announces {head.size} bytes and has {len(data)}")
    if head.count < 0 or head.last_delta < 0:
        raise Corrupt("malformed head of a Kafka batch")
    return head


def check_kafka(header: Header, body: Buffer) -> None:
    """Check a batch from outside: its CRC, and that both heads say the same."""
    head = parse_kafka(body)
    ours = (head.count, head.last_delta + 1, head.producer)
    theirs = (header.count, header.span, (header.producer_id, header.epoch, header.sequence))
    if ours != theirs or head.size + -head.size % ALIGN != len(body):
        raise Corrupt("a Kafka batch does not fit the head before it")
    if head.attributes & CONTROL:
        raise InvalidInput("a batch from a client cannot be a control batch")
    if not crc_holds(head, body):
        raise Corrupt("a Kafka batch fails its CRC")


def crc_holds(head: KafkaHead, batch: Buffer) -> bool:
    """Whether a batch arrived as it was sent."""
    return bool(crc32c(bytes(batch[CRC_FROM : head.size])) == head.crc)


def check_whole(head: KafkaHead, batch: Buffer) -> None:
    """`Corrupt` if something follows a batch, such as another one."""
    if head.size != len(batch):
        raise Corrupt("send one batch per partition and request")


def wrap(head: KafkaHead, batch: Buffer) -> EntryParts:
    """One of Kafka's batches as an entry that a log takes; `Corrupt` if its head is bad.

    Its records must have been checked (`nexo.batch.kafka_check`).
    """
    check_whole(head, batch)
    if head.count < 1 or head.last_delta != head.count - 1:
        raise Corrupt("a Kafka batch must have records, numbered without gaps")
    body = [bytes(batch), bytes(-head.size % ALIGN)]
    flags = _OF_A_TRANSACTION if head.attributes & TRANSACTIONAL else _WRAPPED
    sealed = seal(
        body, count=head.count, first_ms=max(head.first_ms, 0),
        last_ms=max(head.last_ms, head.first_ms, 0), flags=flags, producer_id=head.producer.id,
        sequence=head.producer.sequence, epoch=head.producer.epoch,
    )  # fmt: skip
    return sealed, body


def retime_kafka(header: Header, body: Buffer, floor_ms: int, ceiling_ms: int) -> EntryParts:
    """The same entry with times in our head that never go back; Kafka's batch stays as it is."""
    first_ms = min(max(header.first_ms, floor_ms), ceiling_ms)
    last_ms = min(max(header.last_ms, first_ms), ceiling_ms)
    parts = [bytes(body)]
    head = seal(
        parts, count=header.count, first_ms=first_ms, last_ms=last_ms, flags=header.flags,
        span=header.span, producer_id=header.producer_id, sequence=header.sequence,
        epoch=header.epoch,
    )  # fmt: skip
    return head, parts


def native(header: Header, body: Buffer, max_bytes: int = MAX_BODY_BYTES) -> tuple[Header, bytes]:
    """The entry with columns that a Kafka batch stands for, at the same offsets.

    Records that cannot be read become empty, with a header that says why: one bad producer must
    not stop the readers of a stream.
    """
    rows = _rows(header, body, max_bytes)
    keyed = rows.keys.count(None) < len(rows.keys)
    head, parts = encode(
        rows.values,
        rows.types,
        _ascending(rows.stamps, header.first_ms, header.last_ms),
        keys=rows.keys if keyed else None,
        headers=rows.headers,
        producer=BatchProducer(header.producer_id, header.epoch, header.sequence),
        flags=header.flags & _NOT_KAFKA,
    )
    stamp(head, header.base_offset)
    return parse(head), bytes(head) + b"".join(parts)


def _ascending(stamps: list[int], first_ms: int, last_ms: int) -> list[int]:
    """Times within the head's bounds that never go back; most already are."""
    if first_ms <= stamps[0] and stamps[-1] <= last_ms and sorted(stamps) == stamps:
        return stamps
    return list(accumulate((min(max(ms, first_ms), last_ms) for ms in stamps), max))


def _rows(header: Header, body: Buffer, max_bytes: int) -> Rows:
    try:
        head = parse_kafka(body)
        packed = bytes(body[HEAD_SIZE : head.size])
        kind = head.attributes & COMPRESSION
        data = unpack_kafka(kind, packed, max_bytes) if kind else packed
        return read_records(data, head.count, head.first_ms)
    except (NexoError, IndexError, ValueError) as error:
        return _unreadable(header, error)


def _unreadable(header: Header, error: Exception) -> Rows:
    count = header.count
    reason = error.message if isinstance(error, NexoError) else "its records are malformed"
    note = _json({"nexo-error": f"a Kafka client sent a batch that cannot be read: {reason}"})
    return Rows([b""] * count, 0, [header.first_ms] * count, [None] * count, [note] * count)
