"""Which transactional ids there are, and which transaction each has open.

Open transactions are rolled back when the process ends. A producer that was mid-transaction is
rejected until it asks for its id again, so half a transaction is never committed; clients ask by
themselves once the transaction is aborted. Ids and epochs of producers are durable. A clean stop
also notes who had nothing open: they go on after it (`KafkaTransactions.resting`).
"""

from __future__ import annotations

from collections.abc import Collection, Hashable
from dataclasses import dataclass

from nexo.brokers.stream.producers import ProducerSession
from nexo.brokers.stream.records import RestingProducer
from nexo.dialects.kafka.format.errors import Error, Refused
from nexo.errors import InvalidName
from nexo.model.names import name_of

_OWNER = "kafka"
_ENDED_KEPT = 10_000
"""Ids without an open transaction that are remembered; the others have to begin again."""
NOBODY = ProducerSession(-1, -1)
"""Instead of an earlier producer: there was none."""


@dataclass(slots=True)
class Transactional:
    """One transactional id."""

    id: str
    user: str
    """Whose it is; empty while authentication is off."""
    producer: int
    epoch: int
    timeout_ms: int
    replaced: ProducerSession = NOBODY
    """The producer that may ask for the present epoch, and gets it: its transaction ended or timed
    out, or it has asked before and the answer was lost (KIP-360, KIP-890)."""
    number: int | None = None
    """Of the open transaction."""
    ending: bool = False
    committed: bool | None = None
    """Whether the last one was; None before the first since the producer started."""
    timed_out: bool = False
    """The last one was rolled back without its doing."""

    @property
    def owner(self) -> Hashable:
        """Who the engine's transactions belong to."""
        return _OWNER, self.id

    @property
    def session(self) -> ProducerSession:
        return ProducerSession(self.producer, self.epoch)

    def move_on(self, session: ProducerSession) -> None:
        """Its transaction is over, rolled back unless told otherwise; it has the next epoch."""
        self.replaced = self.session
        self.producer, self.epoch = session
        self.number, self.committed, self.timed_out = None, False, False


class KafkaTransactions:
    """The transactional ids of one process."""

    def __init__(self) -> None:
        self._known: dict[str, Transactional] = {}

    def all(self) -> Collection[Transactional]:
        return self._known.values()

    def resting(self) -> dict[str, RestingProducer]:
        """Those without an open transaction, by the name of their producer."""
        return {
            producer_name(name): (each.timeout_ms, each.committed)
            for name, each in self._known.items()
            if each.number is None and not each.ending
        }

    def known(self, name: str) -> Transactional | None:
        """What is known of an id."""
        return self._known.get(name)

    def start(
        self,
        name: str,
        user: str,
        session: ProducerSession,
        timeout_ms: int,
        replaced: ProducerSession = NOBODY,
    ) -> Transactional:
        """A producer with this id has started: it fences those before it."""
        self._known.pop(name, None)
        if len(self._known) >= _ENDED_KEPT:
            ended = (key for key, each in self._known.items() if each.number is None)
            self._known.pop(next(ended, ""), None)
        found = Transactional(name, user, *session, timeout_ms, replaced)
        self._known[name] = found
        return found

    def go_on(
        self, name: str, user: str, session: ProducerSession, rested: RestingProducer
    ) -> Transactional:
        """A producer had nothing open at a clean stop: it goes on as it was."""
        timeout_ms, committed = rested
        found = self.start(name, user, session, timeout_ms)
        found.committed = committed
        return found


def producer_name(transactional_id: str) -> str:
    """The producer that a transactional id is."""
    try:
        return name_of(f"kafka/{transactional_id}")
    except InvalidName as error:
        raise Refused(Error.INVALID_REQUEST, error.message) from None
