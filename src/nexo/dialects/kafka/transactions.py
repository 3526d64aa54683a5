"""Kafka's transactions on the engine's own (SPEC H1, L4).

A transactional producer may change connections, so its transaction belongs to its transactional
id; see `transactional_ids`. What has no transaction any more is found out with the next request:
then the id gets its next epoch, as on Kafka, and its producer is told that it was fenced.
"""

from __future__ import annotations

from nexo.access.permit import WRITE, permit
from nexo.brokers.stream.groups.ordered_state import OffsetCommit
from nexo.brokers.stream.producers import ProducerSession
from nexo.dialects.kafka.commits import check_commit, sound_commits, with_error
from nexo.dialects.kafka.format.apis import ApiKey
from nexo.dialects.kafka.format.errors import (
    Error,
    Refused,
    coordinator_error,
    error_of,
    group_error,
    refusal,
)
from nexo.dialects.kafka.producer_ids import abort, check_may_be, fence
from nexo.dialects.kafka.request import (
    KafkaConnection,
    Request,
    by_topic,
    errors_to,
    group_of,
    outline_with,
    rows_of,
)
from nexo.dialects.kafka.transactional_ids import Transactional, producer_name
from nexo.errors import NexoError, TransactionAborted
from nexo.model import Broker

_KNOW_FENCED = {
    ApiKey.ADD_PARTITIONS_TO_TXN: 2,
    ApiKey.ADD_OFFSETS_TO_TXN: 2,
    ApiKey.END_TXN: 2,
}
"""From which version on an API says PRODUCER_FENCED; others say INVALID_PRODUCER_EPOCH."""
_FORBIDDEN = Error.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


def _fenced(request: Request) -> Refused:
    since = _KNOW_FENCED.get(request.api.key)
    knows = since is not None and request.version >= since
    return Refused(Error.PRODUCER_FENCED if knows else Error.INVALID_PRODUCER_EPOCH)


def _producer(request: Request, producer_id: int, epoch: int) -> Transactional:
    """The producer that a request names, unless a later one has taken its place."""
    session, name = request.session, request["transactional_id"] or ""
    found = session.state.transactions.known(name)
    mine = check_may_be(request, name, "" if found is None else found.user)
    if found is None and mine:
        found = _rested(session, name, ProducerSession(producer_id, epoch))
    if found is None or not mine or producer_id != found.producer:
        raise Refused(Error.INVALID_PRODUCER_ID_MAPPING)
    transact = session.streams.transact
    if found.number is not None and not transact.is_open(found.number, found.owner):
        fence(request, found)
    if epoch != found.epoch:
        raise _fenced(request)
    if found.ending:
        raise Refused(Error.CONCURRENT_TRANSACTIONS)
    return found


def _rested(session: KafkaConnection, name: str, given: ProducerSession) -> Transactional | None:
    """A producer that had nothing open when the server was last shut down, and is still that."""
    producer, streams = producer_name(name), session.streams
    rested = streams.core.resting.get(producer)
    if rested is None or streams.publishing.current_producer(producer) != given:
        return None
    del streams.core.resting[producer]
    user = streams.core.engine.producer_owner(producer)
    return session.state.transactions.go_on(name, user, given, rested)


def _named(request: Request) -> Transactional:
    return _producer(request, request["producer_id"], request["epoch"])


def transaction_of(request: Request, producer_id: int, epoch: int) -> Transactional:
    """The open transaction that a batch belongs to."""
    return _with_transaction(_producer(request, producer_id, epoch))


def _with_transaction(found: Transactional) -> Transactional:
    if found.number is None:
        raise Refused(Error.INVALID_TXN_STATE, "no transaction is open")
    return found


# -- what a transaction has ----------------------------------------------------------------


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
        found = outline_with(request, topic, index)
        permit(request.session.identity, Broker.STREAM, WRITE, found.name)
    except NexoError as error:
        return error_of(error)
    return Error.NONE


def _opened(request: Request) -> Error:
    """Begin a transaction unless one is open."""
    try:
        found = _named(request)
        if found.number is None:
            begin = request.session.streams.transact.begin
            found.number = begin(request.session, found.timeout_ms, found.owner)
    except NexoError as error:
        return coordinator_error(error, _FORBIDDEN)
    return Error.NONE


def add_offsets(request: Request) -> None:
    """Begin a transaction, if none is open, that will commit offsets of a group."""
    try:
        request.session.streams.ordered.permit_name(request.session, group_of(request["group"]))
    except NexoError as error:
        request.answer({"error": refusal(error)})
    else:
        request.answer({"error": _opened(request)})


def offset_commit(request: Request) -> None:
    """Commit offsets together with the transaction."""
    commits, answers = sound_commits(request)
    error = Error.NONE
    try:
        found = _named(request)
    except NexoError as caught:
        error = coordinator_error(caught, _FORBIDDEN)
    else:
        try:
            _add_offsets(request, found, commits)
        except NexoError as caught:
            error = refusal(caught)
    request.answer(with_error(answers, error))


def _add_offsets(request: Request, found: Transactional, commits: list[OffsetCommit]) -> None:
    session, streams = request.session, request.session.streams
    group = group_of(request["group"])
    refused = check_commit(request, group, commits)
    plain = request["generation"] < 0 and not request["member"]
    if refused is not None and not plain:
        raise Refused(group_error(refused))
    number = _with_transaction(found).number
    assert number is not None
    streams.ordered.ensure(group)
    streams.transact.add_checked_offsets(session, number, group, commits, found.owner)


# -- its end -------------------------------------------------------------------------------


def end(request: Request) -> None:
    """Commit or roll back."""
    wants_commit = bool(request["committed"])
    try:
        found = _named(request)
        if found.number is None:
            same = found.committed is wants_commit
            request.answer({"error": Error.NONE if same else Error.INVALID_TXN_STATE})
            return
        _end(request, found, found.number, wants_commit)
    except NexoError as error:
        request.answer({"error": coordinator_error(error, _FORBIDDEN)})


def _end(request: Request, found: Transactional, number: int, wants_commit: bool) -> None:
    found.number, found.ending = None, True

    def done(error: NexoError | None) -> None:
        found.ending = False
        found.committed = wants_commit and error is None
        answer = Error.NONE
        if wants_commit and isinstance(error, TransactionAborted):
            fence(request, found)
            answer = _fenced(request).error
        elif wants_commit and error is not None:
            answer = Error.INVALID_TXN_STATE
        request.answer({"error": answer})

    if not wants_commit:
        abort(request, number, found.owner, done)
        return
    with errors_to(done):
        request.session.streams.transact.commit(request.session, number, done, found.owner)
