"""Kafka's transactions on the engine's own (SPEC H1, L4).

A transactional producer may change connections, so its transaction belongs to its transactional
id; see `transactional_ids`. What has no transaction any more is found out with the next request:
then the id gets its next epoch, as on Kafka, and its producer is told that it was fenced.

Newer clients (KIP-890) send a batch or offsets without opening a transaction first, and get the
next epoch from each that ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

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
from nexo.dialects.kafka.producer_ids import (
    abort,
    asking,
    check_may_be,
    fence,
    fence_if_gone,
    move_on,
)
from nexo.dialects.kafka.request import (
    Gather,
    KafkaConnection,
    Request,
    by_topic,
    errors_to,
    group_of,
    in_steps,
    outline_with,
    rows_of,
)
from nexo.dialects.kafka.transactional_ids import Transactional, producer_name
from nexo.errors import NexoError, TransactionAborted
from nexo.model import Broker
from nexo.services.connection import Done

_KNOW_FENCED = {
    ApiKey.ADD_PARTITIONS_TO_TXN: 2,
    ApiKey.ADD_OFFSETS_TO_TXN: 2,
    ApiKey.END_TXN: 2,
}
"""From which version on an API says PRODUCER_FENCED; others say INVALID_PRODUCER_EPOCH."""
_OPENS = {ApiKey.PRODUCE: 12, ApiKey.TXN_OFFSET_COMMIT: 5}
"""From which version on an API opens the transaction that it is for."""
_KNOW_ABORTABLE = {ApiKey.PRODUCE: 11, ApiKey.TXN_OFFSET_COMMIT: 4, ApiKey.END_TXN: 4}
"""From which version on an API says TRANSACTION_ABORTABLE; others say INVALID_TXN_STATE."""
_MOVES_ON = 5
"""From this version on the end of a transaction gives its producer the next epoch."""
_FORBIDDEN = Error.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


def _is_at_least(request: Request, versions: dict[ApiKey, int]) -> bool:
    since = versions.get(request.api.key)
    return since is not None and request.version >= since


def _fenced(request: Request) -> Refused:
    knows = _is_at_least(request, _KNOW_FENCED)
    return Refused(Error.PRODUCER_FENCED if knows else Error.INVALID_PRODUCER_EPOCH)


def _not_open(request: Request) -> Error:
    knows = _is_at_least(request, _KNOW_ABORTABLE)
    return Error.TRANSACTION_ABORTABLE if knows else Error.INVALID_TXN_STATE


def _producer(request: Request, producer_id: int, epoch: int) -> Transactional:
    """The producer that a request names, unless a later one has taken its place."""
    session, name = request.session, request["transactional_id"] or ""
    found = session.state.transactions.known(name)
    mine = check_may_be(request, name, "" if found is None else found.user)
    if found is None and mine:
        found = _rested(session, name, ProducerSession(producer_id, epoch))
    if found is None or not mine or producer_id != found.producer:
        raise Refused(Error.INVALID_PRODUCER_ID_MAPPING)
    fence_if_gone(request, found)
    if found.ending and epoch in (found.epoch, found.replaced.epoch):
        raise Refused(Error.CONCURRENT_TRANSACTIONS)
    if epoch != found.epoch:
        raise _fenced(request)
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
    return _with_transaction(request, _producer(request, producer_id, epoch))


def _with_transaction(request: Request, found: Transactional) -> Transactional:
    if found.number is None:
        if not _is_at_least(request, _OPENS):
            raise Refused(_not_open(request), "no transaction is open")
        _open(request, found)
    return found


def _open(request: Request, found: Transactional) -> None:
    begin = request.session.streams.transact.begin
    found.number = begin(request.session, found.timeout_ms, found.owner)


# -- what a transaction has ----------------------------------------------------------------


def add_partitions(request: Request) -> Iterator[int]:
    """Begin a transaction, if none is open, that will write to these partitions."""
    rows: list[tuple[str, int]] = rows_of(request)
    errors = yield from in_steps(rows, lambda row: _partition_error(request, *row))
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
            _open(request, found)
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


def offset_commit(request: Request) -> Iterator[int]:
    """Commit offsets together with the transaction."""
    commits, answers = yield from sound_commits(request)
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
    number = _with_transaction(request, found).number
    assert number is not None
    streams.ordered.ensure(group)
    streams.transact.add_checked_offsets(session, number, group, commits, found.owner)


# -- its end -------------------------------------------------------------------------------


def end(request: Request) -> None:
    """Commit or roll back."""
    wants_commit = bool(request["committed"])
    try:
        found = _ended_before(request)
        if found is not None:
            _answer_end(request, found, _late(found, wants_commit))
            return
        found = _named(request)
        if found.number is not None:
            _end(request, found, found.number, wants_commit)
        elif request.version >= _MOVES_ON:
            _end_nothing(request, found, wants_commit)
        else:
            _answer_end(request, found, _again(found, wants_commit))
    except NexoError as error:
        request.answer({"error": coordinator_error(error, _FORBIDDEN)})


def _ended_before(request: Request) -> Transactional | None:
    """The producer of a transaction that has ended, if this asks for its end once more."""
    found = request.session.state.transactions.known(request["transactional_id"] or "")
    if found is None or request.version < _MOVES_ON:
        return None
    if not check_may_be(request, found.id, found.user):
        return None
    fence_if_gone(request, found)
    is_over = found.number is None and found.committed is not None and not found.ending
    return found if is_over and found.replaced == asking(request) else None


def _again(found: Transactional, wants_commit: bool) -> Error:
    return Error.NONE if found.committed is wants_commit else Error.INVALID_TXN_STATE


def _late(found: Transactional, wants_commit: bool) -> Error:
    """The answer to the end of a transaction that is over.

    Kafka calls the commit of one that timed out INVALID_TXN_STATE too, for which Kafka Streams
    ends; it goes on if it is fenced, and any other producer has to start anew for either.
    """
    error = _again(found, wants_commit)
    return Error.PRODUCER_FENCED if error and found.timed_out else error


def _answer_end(request: Request, found: Transactional, error: Error) -> None:
    """Newer clients are told the epoch that they have from now on."""
    now = {} if error else {"producer_id": found.producer, "epoch": found.epoch}
    request.answer({"error": error} | now)


def _end_nothing(request: Request, found: Transactional, wants_commit: bool) -> None:
    """Roll back a transaction that has nothing."""
    if wants_commit:
        raise Refused(Error.INVALID_TXN_STATE, "no transaction is open")
    _settle(request, found, wants_commit, lambda done: done(None))


def _end(request: Request, found: Transactional, number: int, wants_commit: bool) -> None:
    transact = request.session.streams.transact

    def ends(done: Done[None]) -> None:
        if wants_commit:
            transact.commit(request.session, number, done, found.owner)
        else:
            abort(request, number, found.owner, done)

    _settle(request, found, wants_commit, ends)


def _settle(
    request: Request, found: Transactional, wants_commit: bool, ends: Callable[[Done[None]], None]
) -> None:
    """Answer once a transaction has ended and the epoch after it, if there is one, is durable."""

    def ended(errors: list[NexoError | None]) -> None:
        found.ending = False
        found.committed = wants_commit and errors[0] is None
        matters = errors if wants_commit else errors[1:]
        _answer_end(request, found, _outcome(request, found, next(filter(None, matters), None)))

    gather: Gather[NexoError | None] = Gather(ended)
    found.number, found.ending = None, True
    done = gather.expect()
    with errors_to(done):
        ends(done)
    if request.version >= _MOVES_ON:
        move_on(request, found, gather.expect())
    gather.complete()


def _outcome(request: Request, found: Transactional, error: NexoError | None) -> Error:
    """What a client is told whose transaction has ended, as it wished or not."""
    if error is None:
        return Error.NONE
    if not isinstance(error, TransactionAborted):
        return Error.INVALID_TXN_STATE
    if _is_at_least(request, _KNOW_ABORTABLE):
        return Error.TRANSACTION_ABORTABLE
    fence(request, found)
    return _fenced(request).error
