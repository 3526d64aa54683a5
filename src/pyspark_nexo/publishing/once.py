"""One transaction publishes what all tasks of a write have staged, and notes that in a ledger.

The ledger is a compacted stream: by streaming query, the number of its last published batch. A
batch that it has is not published again, whatever order its rows have this time. The transaction
relies on the ledger's record being as it was read, so that of two drivers with one checkpoint
only one publishes a batch.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from dataclasses import dataclass

import nexo
from nexo.client._sync.stream.transaction import Transaction
from nexo.errors import (
    AlreadyExists,
    ConnectionLost,
    Corrupt,
    Forbidden,
    NexoError,
    NotFound,
    OutcomeUnknown,
    PartitionsChanged,
    RequestTimeout,
    TransactionAborted,
    Unavailable,
)
from nexo.lake.writing.staging import StagingPlace
from nexo.protocol.stream_publishing import ROUTE
from pyspark_nexo.publishing.staged import StagedBatch, staged_batches
from pyspark_nexo.tiering import Probe

log = logging.getLogger("nexo.spark")

_TRIES = 5
_PAUSE_S = 0.25
_LEAST_S, _MOST_S, _PER_S = 60.0, 900.0, 1024**2
"""How long a transaction may last, and the bytes for which it gets a second more."""
_PASSING = (TransactionAborted, ConnectionLost, RequestTimeout, Unavailable, OutcomeUnknown)


@dataclass(frozen=True, slots=True)
class StagedFile:
    """What one task has staged."""

    name: str
    bytes: int


@dataclass(frozen=True, slots=True)
class LedgerMark:
    """A batch of a streaming query, and the stream that holds the ledger."""

    ledger: str
    query: str
    number: int


def publish_once(
    url: str | None,
    place: StagingPlace,
    files: Iterable[StagedFile],
    mark: LedgerMark | None,
    probe: Probe,
) -> bool:
    """Publish staged files together; returns False if the ledger has the batch already.

    Without a ``mark`` the write counts whenever it is made. What ends a transaction, such as a
    restart of the broker, is tried again. `OutcomeUnknown` if it is not known whether it counts.
    """
    found = list(files)
    for number in range(_TRIES - 1):
        try:
            with nexo.connect(url) as client:
                return _published(client, place, found, mark, probe)
        except _PASSING as error:
            if isinstance(error, OutcomeUnknown) and mark is None:
                raise
            log.info("publishes again: %s", error.message)
            time.sleep(_PAUSE_S * 2**number)
    with nexo.connect(url) as client:
        return _published(client, place, found, mark, probe)


def _published(
    client: nexo.Client,
    place: StagingPlace,
    files: list[StagedFile],
    mark: LedgerMark | None,
    probe: Probe,
) -> bool:
    offset = -1
    if mark is not None:
        number, offset = _last(client, mark)
        if number >= mark.number:
            return False
    size = sum(each.bytes for each in files)
    limit_s = min(_LEAST_S + size / _PER_S, _MOST_S)
    with client.transaction(timeout=limit_s) as transaction:
        probe("before the publishing")
        for each in files:
            for batch in staged_batches(place, each.name, each.bytes):
                _publish(transaction, batch)
        probe("published")
        if mark is not None:
            transaction.rely_on(mark.ledger, mark.query, offset)
            transaction.publish(mark.ledger, {"batch": mark.number}, key=mark.query)
        probe("before the commit")
    probe("committed")
    return True


def _publish(transaction: Transaction, batch: StagedBatch) -> None:
    """Publish a batch; if the stream has more partitions now, the broker places its records."""
    try:
        transaction.publish_entry(
            batch.stream, batch.partition, batch.entry, count=batch.partitions
        )
    except PartitionsChanged:
        transaction.publish_entry(batch.stream, ROUTE, batch.entry)


def _last(client: nexo.Client, mark: LedgerMark) -> tuple[int, int]:
    """The last published batch of a query, and where the ledger says so; -1 if there is none."""
    stream = client.stream(mark.ledger)
    try:
        found = stream.get(mark.query)
    except NotFound:
        _make(client, mark.ledger)
        found = None
    except Forbidden as error:
        raise _refused(mark.ledger, error) from error
    if found is None:
        return -1, -1
    try:
        return int(found.value["batch"]), found.offset
    except (ValueError, TypeError, KeyError, NexoError):
        raise Corrupt(
            f"stream {mark.ledger!r} does not say which batch of query {mark.query} was "
            f"published last: its record at {found.offset} is not as Nexo wrote it"
        ) from None


def _make(client: nexo.Client, ledger: str) -> None:
    try:
        client.stream(ledger).create(cleanup="compact")
    except AlreadyExists:
        return
    except Forbidden as error:
        raise _refused(ledger, error) from error


def _refused(ledger: str, error: Forbidden) -> Forbidden:
    return Forbidden(
        f"{error.message}; exactly-once delivery notes each batch in the stream {ledger!r}: let "
        "the user read and write it, name another with .option('ledger', …), or take "
        ".option('delivery', 'at-least-once')"
    )
