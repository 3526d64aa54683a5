"""Produce: batches are stored as they come (SPEC L3)."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from typing import TypeAlias
from uuid import UUID

from nexo import limits
from nexo.access.permit import WRITE, permit
from nexo.batch.compression import check_kafka_kind
from nexo.batch.kafka import (
    COMPRESSION,
    TRANSACTIONAL,
    KafkaHead,
    check_whole,
    crc_holds,
    parse_kafka,
    wrap,
)
from nexo.batch.kafka_check import UnkeyedRecords, check_records
from nexo.batch.kafka_join import lone_record
from nexo.batch.kafka_pack import KINDS, repacked
from nexo.brokers.stream.publishing import Placed
from nexo.dialects.kafka.configs import AFTER_MAX_MS
from nexo.dialects.kafka.format.codec import KafkaMessage
from nexo.dialects.kafka.format.errors import Error, Refused, failure
from nexo.dialects.kafka.request import ROW_WORK, Gather, Request, by_topic, outline_with, rows_of
from nexo.dialects.kafka.transactions import transaction_of
from nexo.errors import Corrupt, InvalidOption, NexoError, PayloadTooLarge
from nexo.model import Broker
from nexo.services.stream.gathering import RecordStored

_BY_ID = 13
"""From this version on topics have their ids."""
TopicRef: TypeAlias = str | UUID


class UnfitRecords(Refused):
    """A batch that is refused for some of its records."""

    def __init__(self, indexes: Sequence[int], message: str) -> None:
        super().__init__(Error.INVALID_RECORD, message)
        self.indexes = indexes


def _of_records(error: NexoError) -> KafkaMessage:
    """Which records a batch was refused for."""
    if not isinstance(error, UnfitRecords):
        return {}
    return {"errors": [{"index": index, "message": error.message} for index in error.indexes]}


def produce(request: Request) -> Iterator[int]:
    """Store one batch for each partition; each is answered by itself.

    A client that wants no answer is disconnected after an error.
    """

    def finish(rows: list[tuple[TopicRef, KafkaMessage]]) -> None:
        if request["acks"] != 0:
            request.answer({"topics": by_topic(rows)})
            return
        request.answer_nothing()
        if any(row.get("error") for _, row in rows):
            request.session.finish()

    gather: Gather[tuple[TopicRef, KafkaMessage]] = Gather(finish)
    for topic, part in rows_of(request, by_id=request.version >= _BY_ID):
        yield from _produce_one(request, topic, part, gather)
        yield ROW_WORK
    gather.complete()


def _produce_one(
    request: Request,
    topic: TopicRef,
    part: KafkaMessage,
    gather: Gather[tuple[TopicRef, KafkaMessage]],
) -> Iterator[int]:
    done = gather.expect()
    index: int = part["index"]
    records: memoryview = part["records"] if part["records"] is not None else memoryview(b"")

    def stored(error: NexoError | None, _: int = 0, offset: int = 0) -> None:
        if error is not None:
            done((topic, {"index": index} | failure(error) | _of_records(error)))
        else:
            done((topic, {"index": index, "base_offset": offset, "log_start": start}))

    try:
        if request["acks"] not in (-1, 0, 1):
            raise Refused(Error.INVALID_REQUIRED_ACKS, "acks must be 0, 1 or all")
        found = outline_with(request, topic, index)
        permit(request.session.identity, Broker.STREAM, WRITE, found.name)
        head = yield from _check(request, records, keyed=found.options.compacts)
        if (kind := KINDS.get(found.options.kafka_compression)) is not None:
            head, records = yield from _repacked(request, head, records, kind)
        start = request.session.streams.admin.start_offset(request.session, found.name, index)
        _store(request, found.name, index, head, records, stored)
        yield len(records)
    except NexoError as error:
        stored(error)


def _check(
    request: Request, records: memoryview, *, keyed: bool
) -> Generator[int, None, KafkaHead]:
    """Refuse what no log checks: consumers must be able to read every record."""
    largest = request.session.state.host.settings.max_payload_bytes
    if len(records) > largest:
        raise PayloadTooLarge(f"a batch of {len(records):,} bytes: must be at most {largest:,}")
    head = parse_kafka(records)
    _note_producer(request, head.producer_id)
    if head.count > limits.KAFKA_BATCH_RECORDS:
        most = limits.KAFKA_BATCH_RECORDS
        raise PayloadTooLarge(f"a batch of {head.count:,} records: must be at most {most:,}")
    if head.last_ms > request.session.state.host.clock.now_ms() + AFTER_MAX_MS:
        reason = "a record is more than an hour ahead of the server's clock"
        raise Refused(Error.INVALID_TIMESTAMP, reason)
    try:
        check_kafka_kind(head.attributes & COMPRESSION)
        most = max(limits.KAFKA_UNPACKED_BYTES, largest)
        yield from check_records(head, records, most, keyed=keyed)
    except InvalidOption as error:
        request.session.state.warn_once(f"batches of Kafka clients are refused: {error.message}")
        raise Refused(Error.UNSUPPORTED_COMPRESSION, error.message) from None
    except UnkeyedRecords as error:
        raise UnfitRecords(error.indexes, error.message) from None
    except Corrupt as error:
        arrived = crc_holds(head, records)
        raise Refused(Error.INVALID_RECORD, error.message) if arrived else error from None
    return head


def _repacked(
    request: Request, head: KafkaHead, records: memoryview, kind: int
) -> Generator[int, None, tuple[KafkaHead, memoryview]]:
    """The batch in the compression that its topic has."""
    if head.attributes & COMPRESSION == kind:
        return head, records
    check_whole(head, records)
    if not crc_holds(head, records):
        raise Corrupt("a Kafka batch fails its CRC")
    most = request.session.state.host.settings.max_payload_bytes
    packed = memoryview((yield from repacked(records, kind, most)))
    return parse_kafka(packed), packed


def _note_producer(request: Request, producer_id: int) -> None:
    """Know once for each connection what a starting producer cannot be asked."""
    session = request.session
    if session.waits_for_its_id:
        session.waits_for_its_id = False
        session.state.second_looks.produced(session.address, request.client_id, producer_id)


def _store(
    request: Request, name: str, index: int, head: KafkaHead, records: memoryview,
    stored: RecordStored,
) -> None:  # fmt: skip
    streams = request.session.streams
    lone = lone_record(head, records)
    if lone is not None:
        streams.publishing.publish_lone(request.session, name, index, lone, stored)
        return
    streams.publishing.gathering.flush()
    sealed, body = wrap(head, records)
    entry = b"".join((sealed, *body))

    def done(found: list[Placed] | NexoError) -> None:
        if isinstance(found, NexoError):
            stored(found, index, 0)
        else:
            stored(None, index, found[0].offset)

    if not head.attributes & TRANSACTIONAL:
        streams.publishing.publish(request.session, name, entry, done, index)
        return
    try:
        transaction = transaction_of(request, head.producer_id, head.epoch)
    except Refused as refused:
        raise Refused(refused.error, "no transaction is open for this batch") from None
    assert transaction.number is not None
    streams.transact.publish(
        request.session, transaction.number, name, entry, done, index, owner=transaction.owner
    )
