"""Which transactional ids there are, and which transaction each has open.

This is lost with the process, and open transactions are rolled back. A producer that was
mid-transaction is rejected until it asks for its id again, so half a transaction is never
committed; clients ask by themselves once the transaction is aborted. Ids and epochs of producers
are durable.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from nexo.brokers.stream.producers import ProducerSession
from nexo.dialects.kafka.format.codec import KafkaMessage
from nexo.dialects.kafka.format.errors import Error, Refused

_OWNER = "kafka"
_ENDED_KEPT = 10_000
"""Ids without an open transaction that are remembered; the others have to begin again."""


@dataclass(slots=True)
class Transactional:
    """One transactional id."""

    id: str
    producer: int
    epoch: int
    timeout_ms: int
    number: int | None = None
    """Of the open transaction."""
    ending: bool = False
    committed: bool = False
    """Whether the last one was."""

    @property
    def owner(self) -> Hashable:
        """Who the engine's transactions belong to."""
        return _OWNER, self.id


class KafkaTransactions:
    """The transactional ids of one process."""

    def __init__(self) -> None:
        self._known: dict[str, Transactional] = {}

    def get(self, asked: KafkaMessage) -> Transactional:
        """The producer that a request names, unless a later one has taken its place."""
        found = self._known.get(asked["transactional_id"] or "")
        if found is None or asked["producer_id"] != found.producer:
            raise Refused(Error.INVALID_PRODUCER_ID_MAPPING)
        if asked["epoch"] != found.epoch:
            raise Refused(Error.PRODUCER_FENCED)
        return found

    def known(self, name: str) -> Transactional | None:
        """What is known of an id."""
        return self._known.get(name)

    def start(self, name: str, session: ProducerSession, timeout_ms: int) -> Transactional:
        """A producer with this id has started: it fences those before it."""
        self._known.pop(name, None)
        if len(self._known) >= _ENDED_KEPT:
            ended = (key for key, each in self._known.items() if each.number is None)
            self._known.pop(next(ended, ""), None)
        found = Transactional(name, session.producer, session.epoch, timeout_ms)
        self._known[name] = found
        return found
