"""Produce: batches are stored as they come (SPEC L3)."""

from __future__ import annotations

from typing import Any

from nexo.batch import decode
from nexo.batch.compression import check_kafka_kind
from nexo.batch.kafka import COMPRESSION, TRANSACTIONAL, KafkaHead, wrap
from nexo.brokers.stream.publishing import Placed
from nexo.dialects.kafka import transactional
from nexo.dialects.kafka.format.codec import Message
from nexo.dialects.kafka.format.errors import Error, error_of
from nexo.dialects.kafka.request import Gather, Request, by_topic, stream_of
from nexo.dialects.kafka.transactions import transaction_of
from nexo.errors import InvalidOption, NexoError, NotFound


def produce(request: Request) -> None:
    """Store one batch for each partition; each is answered by itself.

    A client that wants no answer learns of an error by the end of its connection.
    """

    def finish(rows: list[tuple[str, Message]]) -> None:
        if request["acks"] != 0:
            request.answer({"topics": by_topic(rows)})
            return
        request.answer_nothing()
        if any(row.get("error") for _, row in rows):
            request.session.finish()

    gather: Gather[tuple[str, Message]] = Gather(finish)
    for topic in request["topics"] or ():
        for part in topic["partitions"] or ():
            _produce_one(request, topic["name"] or "", part, gather)
    gather.complete()


def _produce_one(
    request: Request, topic: str, part: Message, gather: Gather[tuple[str, Message]]
) -> None:
    done = gather.expect()
    index: int = part["index"]

    def stored(found: list[Placed] | NexoError) -> None:
        if isinstance(found, NexoError):
            done((topic, _refused(index, error_of(found), found.message)))
        else:
            done((topic, {"index": index, "base_offset": found[0].offset, "log_start": start}))

    try:
        if request["acks"] not in (-1, 0, 1):
            done((topic, _refused(index, Error.INVALID_REQUIRED_ACKS, "acks must be 0, 1 or all")))
            return
        name = stream_of(topic)
        head, entry = _entry(request, name, index, part["records"])
        start = request.session.shared.streams.admin.start_offset(request.session, name, index)
        _store(request, name, index, head, entry, stored)
    except BatchRefused as refused:
        done((topic, _refused(index, refused.error, str(refused))))
    except NexoError as error:
        stored(error)


class BatchRefused(Exception):
    """A batch that Kafka has an error of its own for."""

    def __init__(self, error: Error, message: str) -> None:
        super().__init__(message)
        self.error = error


def _refused(index: int, error: Error, message: str) -> Message:
    return {"index": index, "error": error, "message": message}


def _entry(request: Request, name: str, index: int, records: Any) -> tuple[KafkaHead, bytes]:
    """The batch as one of our entries, with what no log checks checked."""
    outline = request.session.shared.streams.admin.outline
    if not 0 <= index < (found := outline(request.session, name)).options.partitions:
        raise NotFound(f"stream {name!r} has no partition {index}")
    head, (sealed, body) = wrap(records if records is not None else b"")
    try:
        check_kafka_kind(head.attributes & COMPRESSION)
    except InvalidOption as error:
        raise BatchRefused(Error.UNSUPPORTED_COMPRESSION, error.message) from None
    entry = b"".join((sealed, *body))
    if found.options.compacts and any(key is None for key in decode(entry).keys()):  # noqa: SIM118
        raise BatchRefused(Error.INVALID_RECORD, "a compacted topic takes no record without a key")
    return head, entry


def _store(
    request: Request, name: str, index: int, head: KafkaHead, entry: bytes, done: Any
) -> None:
    streams = request.session.shared.streams
    if not head.attributes & TRANSACTIONAL:
        streams.publishing.publish(request.session, name, entry, done, index)
        return
    try:
        found = transaction_of(request, head.producer_id, head.epoch)
    except transactional.TransactionRefused as refused:
        raise BatchRefused(refused.error, "no transaction is open for this batch") from None
    assert found.number is not None
    streams.transact.publish(
        request.session, found.number, name, entry, done, index, owner=found.owner
    )
