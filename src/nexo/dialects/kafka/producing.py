"""Produce: batches are stored as they come (SPEC L3)."""

from __future__ import annotations

from typing import Any

from nexo.access.permit import WRITE, permit
from nexo.batch import decode
from nexo.batch.compression import check_kafka_kind
from nexo.batch.kafka import COMPRESSION, TRANSACTIONAL, KafkaHead, wrap
from nexo.brokers.stream.publishing import Placed
from nexo.dialects.kafka.format.codec import KafkaMessage
from nexo.dialects.kafka.format.errors import Error, Refused, failure
from nexo.dialects.kafka.request import Gather, Request, by_topic, outline_with, rows_of
from nexo.dialects.kafka.transactions import transaction_of
from nexo.errors import InvalidOption, NexoError, PayloadTooLarge
from nexo.model import Broker
from nexo.services.stream.admin import Outline


def produce(request: Request) -> None:
    """Store one batch for each partition; each is answered by itself.

    A client that wants no answer is disconnected after an error.
    """

    def finish(rows: list[tuple[str, KafkaMessage]]) -> None:
        if request["acks"] != 0:
            request.answer({"topics": by_topic(rows)})
            return
        request.answer_nothing()
        if any(row.get("error") for _, row in rows):
            request.session.finish()

    gather: Gather[tuple[str, KafkaMessage]] = Gather(finish)
    for topic, part in rows_of(request):
        _produce_one(request, topic, part, gather)
    gather.complete()


def _produce_one(
    request: Request, topic: str, part: KafkaMessage, gather: Gather[tuple[str, KafkaMessage]]
) -> None:
    done = gather.expect()
    index: int = part["index"]

    def stored(found: list[Placed] | NexoError) -> None:
        if isinstance(found, NexoError):
            done((topic, {"index": index} | failure(found)))
        else:
            done((topic, {"index": index, "base_offset": found[0].offset, "log_start": start}))

    try:
        if request["acks"] not in (-1, 0, 1):
            raise Refused(Error.INVALID_REQUIRED_ACKS, "acks must be 0, 1 or all")
        found = outline_with(request, topic, index)
        permit(request.session.identity, Broker.STREAM, WRITE, found.name)
        _check_size(request, part["records"])
        head, entry = _entry(found, part["records"])
        start = request.session.streams.admin.start_offset(request.session, found.name, index)
        _store(request, found.name, index, head, entry, stored)
    except NexoError as error:
        stored(error)


def _check_size(request: Request, records: Any) -> None:
    most = request.session.state.host.settings.max_payload_bytes
    if records is not None and len(records) > most:
        raise PayloadTooLarge(f"a batch of {len(records):,} bytes: must be at most {most:,}")


def _entry(stream: Outline, records: Any) -> tuple[KafkaHead, bytes]:
    """The batch as one of our entries, after the checks that no log does."""
    head, (sealed, body) = wrap(records if records is not None else b"")
    try:
        check_kafka_kind(head.attributes & COMPRESSION)
    except InvalidOption as error:
        raise Refused(Error.UNSUPPORTED_COMPRESSION, error.message) from None
    entry = b"".join((sealed, *body))
    if stream.options.compacts and any(key is None for key in decode(entry).keys()):  # noqa: SIM118
        raise Refused(Error.INVALID_RECORD, "a compacted topic takes no record without a key")
    return head, entry


def _store(
    request: Request, name: str, index: int, head: KafkaHead, entry: bytes, done: Any
) -> None:
    streams = request.session.streams
    if not head.attributes & TRANSACTIONAL:
        streams.publishing.publish(request.session, name, entry, done, index)
        return
    try:
        found = transaction_of(request, head.producer_id, head.epoch)
    except Refused as refused:
        raise Refused(refused.error, "no transaction is open for this batch") from None
    assert found.number is not None
    streams.transact.publish(
        request.session, found.number, name, entry, done, index, owner=found.owner
    )
