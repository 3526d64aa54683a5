"""Joins Kafka's batches that hold a single record; see `nexo.batch.kafka`.

A record is taken as it is, from its key on: only its number and its distance in time from the
first one are written anew, so that keys, headers, nulls and times in any order stay.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from google_crc32c import value as crc32c

from nexo.batch.encode import EntryParts
from nexo.batch.kafka import (
    CRC_FROM,
    HEAD,
    HEAD_SIZE,
    LENGTH_BEFORE,
    MAGIC,
    KafkaHead,
    crc_holds,
    wrap,
)
from nexo.batch.varint import varint
from nexo.model import Buffer

_LAST_OF_LENGTH = 0x7F
_PLAIN = b"\0\0\0"
"""Attributes, time and number of the first record of a batch."""


class LoneRecord(NamedTuple):
    """The record of a batch that holds nothing else."""

    head: KafkaHead
    batch: bytes
    """The whole batch, as it came."""
    rest_at: int
    """Where its key begins in that."""


def lone_record(head: KafkaHead, batch: Buffer) -> LoneRecord | None:
    """The record of a checked batch that may be joined with others; None if it must stay alone.

    That is so for producers that number their batches, for compressed ones, and for garbage.
    """
    is_other = head.last_delta or head.attributes or head.producer_id >= 0
    if head.count != 1 or is_other or head.size != len(batch):
        return None
    data = bytes(batch)
    at = HEAD_SIZE
    while data[at] > _LAST_OF_LENGTH:
        at += 1
    rest_at = at + 1 + len(_PLAIN)
    is_plain = data[at + 1 : rest_at] == _PLAIN and head.first_ms == head.last_ms >= 0
    if not (is_plain and crc_holds(head, data)):
        return None
    return LoneRecord(head, data, rest_at)


def joined(records: Sequence[LoneRecord]) -> EntryParts:
    """An entry with one batch of these records, in their order."""
    if len(records) == 1:
        return wrap(records[0].head, records[0].batch)
    first_ms = records[0].head.first_ms
    parts = [bytes(HEAD_SIZE)]
    for number, (head, batch, rest_at) in enumerate(records):
        numbered = b"\0" + varint(head.first_ms - first_ms) + varint(number)
        rest = batch[rest_at:]
        parts += (varint(len(numbered) + len(rest)), numbered, rest)
    found, count = bytearray().join(parts), len(records)
    whole = KafkaHead(
        0, len(found) - LENGTH_BEFORE, -1, MAGIC, 0, 0, count - 1, first_ms,
        max(record.head.first_ms for record in records), -1, -1, -1, count,
    )  # fmt: skip
    HEAD.pack_into(found, 0, *whole)
    HEAD.pack_into(found, 0, *whole._replace(crc=crc32c(bytes(found[CRC_FROM:]))))
    return wrap(whole, found)
