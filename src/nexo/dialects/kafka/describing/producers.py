"""Who produces, and which transactions there are."""

from __future__ import annotations

from collections.abc import Iterator

from nexo.access.permit import READ, permit
from nexo.dialects.kafka.format.codec import KafkaMessage
from nexo.dialects.kafka.format.errors import Error, error_of
from nexo.dialects.kafka.producer_ids import check_may_be
from nexo.dialects.kafka.request import ROW_WORK, Request, by_topic, in_steps, outline_with, rows_of
from nexo.dialects.kafka.transactional_ids import Transactional
from nexo.errors import NexoError
from nexo.model import Broker
from nexo.model.names import text_of

_STATES = frozenset(
    [
        "Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort",
        "Dead", "PrepareEpochFence",
    ]
)  # fmt: skip
_NO_TIME = -1


def describe_producers(request: Request) -> Iterator[int]:
    """The idempotent producers that partitions remember."""
    numbers = {known.producer: known for known in request.session.state.transactions.all()}
    rows = yield from in_steps(
        rows_of(request), lambda row: (row[0], _producers(request, *row, numbers))
    )
    request.answer({"topics": by_topic(rows)})


def _producers(
    request: Request, topic: str, index: int, transactional: dict[int, Transactional]
) -> KafkaMessage:
    row: KafkaMessage = {"partition": index, "active": []}
    try:
        name = outline_with(request, topic, index).name
        permit(request.session.identity, Broker.STREAM, READ, name)
        found = request.session.streams.publishing.producers(name, index)
    except NexoError as error:
        return row | {"error": error_of(error), "message": error.message}
    for producer, epoch, last in found:
        known = transactional.get(producer)
        number = None if known is None else known.number
        start = request.session.streams.transact.start_in(number, name, index)
        row["active"].append(
            {
                "producer_id": producer,
                "epoch": epoch,
                "last_sequence": last,
                "current_start": -1 if start is None else start,
            }
        )
    return row


def list_transactions(request: Request) -> Iterator[int]:
    """Transactional ids that the client may use."""
    states, ids = set(request["states"] or ()), set(request["producer_ids"] or ())
    now_ms = request.session.state.host.clock.now_ms()
    rows = []
    for known in [*request.session.state.transactions.all()]:
        yield ROW_WORK
        began_ms = _began_ms(request, known)
        asked = (not states or _state(known) in states) and (not ids or known.producer in ids)
        young = request["duration_ms"] >= 0 and (
            began_ms == _NO_TIME or now_ms - began_ms <= request["duration_ms"]
        )
        if asked and not young and _may_see(request, known):
            row = {"transactional_id": known.id, "producer_id": known.producer}
            rows.append(row | {"state": _state(known)})
    request.answer({"unknown": [each for each in states if each not in _STATES], "states": rows})


def _may_see(request: Request, known: Transactional) -> bool:
    try:
        return check_may_be(request, known.id, known.user)
    except NexoError:
        return False


def describe_transactions(request: Request) -> Iterator[int]:
    states = yield from in_steps(request["ids"] or (), lambda each: _described(request, each or ""))
    request.answer({"states": states})


def _described(request: Request, name: str) -> KafkaMessage:
    row: KafkaMessage = {"transactional_id": name}
    known = request.session.state.transactions.known(name)
    try:
        mine = check_may_be(request, name, "" if known is None else known.user)
    except NexoError as error:
        return row | {"error": error_of(error, Error.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)}
    if known is None or not mine:
        return row | {"error": Error.TRANSACTIONAL_ID_NOT_FOUND}
    touched = request.session.streams.transact.touched(known.number)
    topics = by_topic((text_of(stream), index) for stream, index in touched)
    return row | {
        "state": _state(known),
        "timeout_ms": known.timeout_ms,
        "start_ms": _began_ms(request, known),
        "producer_id": known.producer,
        "epoch": known.epoch,
        "topics": topics,
    }


def _state(known: Transactional) -> str:
    if known.ending:
        return "PrepareCommit"
    if known.number is not None:
        return "Ongoing"
    if known.committed is None:
        return "Empty"
    return "CompleteCommit" if known.committed else "CompleteAbort"


def _began_ms(request: Request, known: Transactional) -> int:
    due_ms = request.session.streams.transact.deadline_ms(known.number)
    return _NO_TIME if due_ms is None else due_ms - known.timeout_ms
