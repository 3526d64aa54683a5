"""Kafka's transactions on the engine's own (SPEC H1, L4).

A transactional producer may change connections, so its transaction belongs to its transactional
id; see `transactional_ids`.
"""

from __future__ import annotations

from collections.abc import Hashable
from functools import partial
from typing import Any

from nexo.brokers.stream.groups.ordered import STANDALONE
from nexo.brokers.stream.producers import ProducerSession
from nexo.dialects.kafka.commits import check_commit, sound_commits, with_error
from nexo.dialects.kafka.format.errors import Error, Refused, error_of, group_error, refusal
from nexo.dialects.kafka.request import (
    Request,
    by_topic,
    errors_to,
    group_of,
    outline_with,
    rows_of,
)
from nexo.dialects.kafka.transactional_ids import Transactional
from nexo.errors import NexoError
from nexo.model.stream import OffsetRow, TxOffsets
from nexo.names import name_of
from nexo.options.stream import MAX_TRANSACTION_MS

_KNOWS_FENCED = 2
"""Clients that use older versions do not know that error."""
_FORBIDDEN = Error.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


# -- producers ---------------------------------------------------------------------------


def init_producer_id(request: Request) -> None:
    """Give a producer its id; a transactional one the next epoch, and end what it left open."""
    name: str | None = request["transactional_id"]
    if name is None:
        start = request.session.streams.publishing.start_producer
        start(request.session, "", partial(_started, request, None))
    elif not name:
        request.answer({"error": Error.INVALID_REQUEST})
    elif not 1 <= request["timeout_ms"] <= MAX_TRANSACTION_MS:
        request.answer({"error": Error.INVALID_TRANSACTION_TIMEOUT})
    else:
        _init_transactional(request, name)


def _init_transactional(request: Request, name: str) -> None:
    session = request.session
    known = session.state.transactions.known(name)

    def start(_: NexoError | None = None) -> None:
        begin = session.streams.publishing.start_producer
        begin(session, name_of(f"kafka/{name}"), partial(_started, request, name))

    with errors_to(partial(_started, request, name)):
        if known is not None and known.ending:
            raise Refused(Error.CONCURRENT_TRANSACTIONS)
        if known is not None and known.number is not None:
            number, known.number = known.number, None
            _abort(request, number, known.owner, start)
        else:
            start()


def _abort(request: Request, number: int, owner: Hashable, done: Any) -> None:
    """Roll back; one that timed out is rolled back already."""
    try:
        request.session.streams.transact.abort(request.session, number, done, owner)
    except NexoError:
        done(None)


def _started(request: Request, name: str | None, found: ProducerSession | NexoError) -> None:
    if isinstance(found, NexoError):
        forbidden = Error.CLUSTER_AUTHORIZATION_FAILED if name is None else _FORBIDDEN
        request.answer({"error": error_of(found, forbidden)})
        return
    if name is not None:
        request.session.state.transactions.start(name, found, request["timeout_ms"])
    request.answer({"producer_id": found.producer, "epoch": found.epoch})


# -- transactions ------------------------------------------------------------------------


def _producer(request: Request) -> Transactional:
    try:
        return request.session.state.transactions.get(request.body)
    except Refused as refused:
        if refused.error is Error.PRODUCER_FENCED and request.version < _KNOWS_FENCED:
            raise Refused(Error.INVALID_PRODUCER_EPOCH) from None
        raise


def _open(request: Request) -> Transactional:
    """The producer of a request, with a transaction; one is begun if there is none."""
    found = _producer(request)
    if found.ending:
        raise Refused(Error.CONCURRENT_TRANSACTIONS)
    if found.number is None:
        begin = request.session.streams.transact.begin
        found.number = begin(request.session, found.timeout_ms, found.owner)
    return found


def add_partitions(request: Request) -> None:
    """Begin a transaction, if none is open, that will write to these partitions."""
    rows: list[tuple[str, int]] = rows_of(request)
    errors = [_partition_error(request, topic, index) for topic, index in rows]
    if any(errors):
        errors = [error or Error.OPERATION_NOT_ATTEMPTED for error in errors]
    else:
        errors = [_opened(request)] * len(rows)
    answers = (
        (topic, {"partition": index, "error": error})
        for (topic, index), error in zip(rows, errors, strict=True)
    )
    request.answer({"topics": by_topic(answers)})


def _partition_error(request: Request, topic: str, index: int) -> Error:
    try:
        outline_with(request, topic, index)
    except NexoError as error:
        return error_of(error)
    return Error.NONE


def _opened(request: Request) -> Error:
    try:
        _open(request)
    except NexoError as error:
        return error_of(error, _FORBIDDEN)
    return Error.NONE


def add_offsets(request: Request) -> None:
    """Begin a transaction, if none is open, that will commit offsets of a group."""
    request.answer({"error": _opened(request)})


def offset_commit(request: Request) -> None:
    """Commit offsets together with the transaction."""
    commits, answers = sound_commits(request)
    error = Error.NONE
    try:
        _add_offsets(request, commits)
    except NexoError as caught:
        error = refusal(caught)
    request.answer(with_error(answers, error))


def _add_offsets(request: Request, commits: list[OffsetRow]) -> None:
    session, streams = request.session, request.session.streams
    group = group_of(request["group"])
    refused = check_commit(request, group)
    plain = request["generation"] < 0 and not request["member"]
    if refused is not None and not plain:
        raise Refused(group_error(refused))
    found = _open(request)
    assert found.number is not None
    streams.ordered.ensure(group)
    inputs = [TxOffsets(group, "", STANDALONE, commits, rewind=True)]
    streams.transact.add_inputs(
        session, found.number, offsets=inputs, owner=found.owner, checked=True
    )


def end(request: Request) -> None:
    """Commit or roll back."""
    wants_commit = bool(request["committed"])
    try:
        found = _producer(request)
        if found.ending:
            raise Refused(Error.CONCURRENT_TRANSACTIONS)
        if found.number is None:
            same = found.committed is wants_commit
            request.answer({"error": Error.NONE if same else Error.INVALID_TXN_STATE})
            return
        _end(request, found, wants_commit)
    except NexoError as error:
        request.answer({"error": error_of(error, _FORBIDDEN)})


def _end(request: Request, found: Transactional, wants_commit: bool) -> None:
    number, found.number, found.ending = found.number, None, True
    assert number is not None

    def done(error: NexoError | None) -> None:
        found.ending = False
        found.committed = wants_commit and error is None
        failed = Error.INVALID_TXN_STATE if wants_commit else Error.NONE
        request.answer({"error": Error.NONE if error is None else failed})

    if not wants_commit:
        _abort(request, number, found.owner, done)
        return
    with errors_to(done):
        request.session.streams.transact.commit(request.session, number, done, found.owner)


def transaction_of(request: Request, producer_id: int, epoch: int) -> Transactional:
    """The open transaction that a batch belongs to."""
    asked = {"producer_id": producer_id, "epoch": epoch}
    asked |= {"transactional_id": request["transactional_id"]}
    found = request.session.state.transactions.get(asked)
    if found.number is None or found.ending:
        raise Refused(Error.INVALID_TXN_STATE)
    return found
