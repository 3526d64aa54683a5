"""InitProducerId: who a producer is, and what it left open (SPEC L4, KIP-360)."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import partial

from nexo.brokers.stream.producers import ProducerSession
from nexo.dialects.kafka.format.errors import Error, Refused, coordinator_error
from nexo.dialects.kafka.request import Request, errors_to
from nexo.dialects.kafka.transactional_ids import NOBODY, Transactional, producer_name
from nexo.errors import NexoError
from nexo.options.stream import MAX_TRANSACTION_MS
from nexo.services.connection import user_of

_KNOWS_FENCED = 4
"""Older versions say INVALID_PRODUCER_EPOCH."""


def init_producer_id(request: Request) -> None:
    """Give a producer its id; a transactional one the next epoch, and end what it left open."""
    name: str | None = request["transactional_id"]
    if name is None:
        start = request.session.streams.publishing.start_producer
        with errors_to(partial(_started, request)):
            start(request.session, "", partial(_started, request))
    elif not name:
        request.answer({"error": Error.INVALID_REQUEST})
    elif not 1 <= request["timeout_ms"] <= MAX_TRANSACTION_MS:
        request.answer({"error": Error.INVALID_TRANSACTION_TIMEOUT})
    else:
        with errors_to(partial(_started, request)):
            _init_transactional(request, name)


def _started(request: Request, found: ProducerSession | NexoError) -> None:
    if isinstance(found, NexoError):
        forbidden = Error.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        if request["transactional_id"] is None:
            forbidden = Error.CLUSTER_AUTHORIZATION_FAILED
        request.answer({"error": coordinator_error(found, forbidden)})
    else:
        request.answer({"producer_id": found.producer, "epoch": found.epoch})


def _init_transactional(request: Request, name: str) -> None:
    """Nothing is rolled back before it is known that the client may have the id."""
    session = request.session
    publishing, known = session.streams.publishing, session.state.transactions.known(name)
    user = "" if known is None else known.user
    publishing.check_producer(session, producer_name(name), user)
    if known is not None and known.ending:
        raise Refused(Error.CONCURRENT_TRANSACTIONS)
    if known is not None:
        fence_if_gone(request, known)
    now = _goes_on_from(request, name, known)
    if now is not None:
        _started(request, now)
    elif known is not None and known.number is not None:
        number, known.number = known.number, None
        abort(request, number, known.owner, partial(_start, request, name))
    else:
        _start(request, name)


def _goes_on_from(
    request: Request, name: str, known: Transactional | None
) -> ProducerSession | None:
    """The epoch that a producer has already, if it asks for the one after its own once more.

    Raises if another producer has taken its place.
    """
    old = asking(request)
    current = request.session.streams.publishing.current_producer(producer_name(name))
    if known is not None:
        current = known.session
    if old.producer == NOBODY.producer or current is None or old == current:
        return None
    if known is not None and known.number is None and old == known.replaced:
        known.committed = None
        return current
    fenced = request.version >= _KNOWS_FENCED
    raise Refused(Error.PRODUCER_FENCED if fenced else Error.INVALID_PRODUCER_EPOCH)


def _start(request: Request, name: str, _: NexoError | None = None) -> None:
    session = request.session
    user, timeout_ms = user_of(session), request["timeout_ms"]
    replaced = asking(request)

    def started(found: ProducerSession | NexoError) -> None:
        if isinstance(found, ProducerSession):
            session.state.transactions.start(name, user, found, timeout_ms, replaced)
        _started(request, found)

    with errors_to(started):
        session.streams.publishing.start_producer(session, producer_name(name), started)


# -- for all requests of a transactional producer --------------------------------------------


def check_may_be(request: Request, name: str, user: str) -> bool:
    """Whether the client may be the producer with a transactional id, which is ``user``'s."""
    may = request.session.streams.publishing.may_produce_as
    return may(request.session, producer_name(name), user)


def fence(request: Request, found: Transactional) -> None:
    """Give an id, whose transaction was rolled back, its next epoch."""
    move_on(request, found, lambda _: None)
    found.timed_out = True


def fence_if_gone(request: Request, found: Transactional) -> None:
    """Fence a producer whose transaction is over without its doing."""
    is_open = request.session.streams.transact.is_open
    if found.number is not None and not is_open(found.number, found.owner):
        fence(request, found)


def asking(request: Request) -> ProducerSession:
    """Who a request says that it comes from."""
    return ProducerSession(request["producer_id"], request["epoch"])


def move_on(
    request: Request, found: Transactional, done: Callable[[NexoError | None], None]
) -> None:
    """Give an id its next epoch, as a transaction of it ends (KIP-890)."""

    def safe(started: ProducerSession | NexoError) -> None:
        done(started if isinstance(started, NexoError) else None)

    next_epoch = request.session.streams.publishing.next_epoch
    found.move_on(next_epoch(producer_name(found.id), safe))


def abort(
    request: Request, number: int, owner: Hashable, done: Callable[[NexoError | None], None]
) -> None:
    """Roll back; one that timed out is rolled back already."""
    try:
        request.session.streams.transact.abort(request.session, number, done, owner)
    except NexoError:
        done(None)
