"""Publishing: batches are stored in partitions, and acknowledged once they are durable."""

from __future__ import annotations

from typing import NamedTuple

from nexo.access.permit import WRITE, permit
from nexo.batch.kafka_join import LoneRecord
from nexo.brokers.stream.partition import check_size
from nexo.brokers.stream.producers import ProducerSession
from nexo.brokers.stream.publishing import ROUTE, Placed, fitting, is_stored
from nexo.brokers.stream.registry import OpenStream
from nexo.brokers.stream.transactions import OpenTransaction
from nexo.errors import Forbidden, NexoError, PayloadTooLarge
from nexo.model import Broker
from nexo.services.connection import Connection, Done, T, user_of
from nexo.services.stream.core import Core
from nexo.services.stream.exposure import stored_here
from nexo.services.stream.gathering import RecordGathering, RecordStored
from nexo.services.stream.permits import permit_producer


class PublishOutcome(NamedTuple):
    """What became of records that need not be stored together."""

    placed: list[Placed]
    refused: list[int]
    """The positions in the batch of the records over the stream's limit."""
    max_message_bytes: int
    """That limit."""


class Publishing:
    """What producers ask for.

    A batch is one entry of `nexo.batch`; its header carries the idempotent producer's id, epoch
    and sequence. ``partition`` is `ROUTE` to have the broker choose by key, or in turn;
    ``partitions`` is the count that the sender chose it by, 0 if it did not say.
    """

    def __init__(self, core: Core) -> None:
        self._core = core
        self.gathering = RecordGathering(core)

    def publish(
        self,
        connection: Connection,
        name: str,
        entry: bytes,
        done: Done[list[Placed]],
        partition: int = ROUTE,
        partitions: int = 0,
    ) -> None:
        """Store one batch, whole or not at all.

        A repeat of one that was stored before partitions were added gets the same answer.
        """
        stream = self.target(connection, name)
        if partitions and not is_stored(stream, partition, entry):
            stream.check_count(partitions)
        placed = self.store(stream, partition, entry)
        self.confirm(stream, placed, len(entry), placed, done)

    def publish_fitting(
        self,
        connection: Connection,
        name: str,
        entry: bytes,
        done: Done[PublishOutcome],
        partition: int = ROUTE,
        partitions: int = 0,
    ) -> None:
        """Store those records of one batch that the stream takes (SPEC E7)."""
        stream = self.target(connection, name, partitions)
        refused: list[int] = []
        try:
            placed = self.store(stream, partition, entry)
        except PayloadTooLarge:
            entry, refused = fitting(stream, entry)
            placed = self.store(stream, partition, entry)
        result = PublishOutcome(placed, refused, stream.options.max_message_bytes)
        self.confirm(stream, placed, len(entry), result, done)

    def publish_one(
        self,
        connection: Connection,
        name: str,
        value_type: int,
        content: bytes,
        stored: RecordStored,
        partition: int = ROUTE,
        partitions: int = 0,
    ) -> None:
        """Store one plain record, together with others of this turn."""
        stream = self.target(connection, name, partitions)
        self.gathering.add(stream, partition, value_type, content, stored)

    def publish_lone(
        self, connection: Connection, name: str, index: int, record: LoneRecord,
        stored: RecordStored,
    ) -> None:  # fmt: skip
        """Store the only record of a Kafka client's batch, together with others of this turn."""
        self.gathering.add_kafka(self.target(connection, name), index, record, stored)

    def start_producer(
        self, connection: Connection, name: str, done: Done[ProducerSession]
    ) -> None:
        """Assign a producer id, durably, so that it is never reused.

        A name gets the id it had before, with the next epoch; the empty one a new id.
        """
        self.check_producer(connection, name)
        core = self._core
        producer = core.engine.start_producer(name, core.now_ms, user_of(connection))
        core.when_safe(core.runtime.unique, lambda error: done(error or producer))

    def check_producer(self, connection: Connection, name: str, owner: str = "") -> None:
        """Raise `Forbidden` unless the client may start, or be, the producer of this name.

        It is that of ``owner``, if the broker has forgotten whose it is.
        """
        permit_producer(connection, name, self._core.engine.producer_owner(name) or owner)

    def may_produce_as(self, connection: Connection, name: str, owner: str = "") -> bool:
        """`check_producer` for a client that must not learn whether another has this name."""
        permit_producer(connection, name, "")
        try:
            self.check_producer(connection, name, owner)
        except Forbidden:
            return False
        return True

    def producers(self, name: str, partition: int) -> list[tuple[int, int, int]]:
        """Id, epoch and last sequence of the idempotent producers that a partition remembers."""
        state = self._core.engine.streams.get(name).partition(partition).producers.state()
        return [(number, epoch, batches[-1][1] - 1) for number, epoch, batches in state if batches]

    def current_producer(self, name: str) -> ProducerSession | None:
        """The producer that started last with this name, if that is still known."""
        return self._core.engine.current_producer(name)

    def next_epoch(self, name: str, done: Done[ProducerSession]) -> ProducerSession:
        """Give a name its next epoch on the broker's own account, as what it had open is over.

        ``done`` is called once the epoch cannot be given again.
        """
        core = self._core
        core.end_turn_soon()
        session = core.engine.start_producer(name, core.now_ms)
        core.when_safe(core.runtime.unique, lambda error: done(error or session))
        return session

    # -- for the other use cases ---------------------------------------------------------

    def target(self, connection: Connection, name: str, partitions: int = 0) -> OpenStream:
        """The stream to write to, made if the server creates streams by their first use."""
        if connection.identity is not None:
            permit(connection.identity, Broker.STREAM, WRITE, name)
        stream = self._core.find_or_create(name)
        if partitions:
            stream.check_count(partitions)
        return stream

    def store(
        self,
        stream: OpenStream,
        partition: int,
        entry: bytes,
        transaction: OpenTransaction | None = None,
    ) -> list[Placed]:
        """Append a batch, unless producers must hold back."""
        core = self._core
        core.runtime.check_writable()
        core.pressure.check()
        try:
            return core.engine.publish(stream, partition, entry, core.now_ms, transaction)
        except NexoError:
            core.end_turn_soon()  # a stored part that must stay hidden is journalled
            raise

    def store_one(
        self, stream: OpenStream, partition: int, value_type: int, content: bytes
    ) -> Placed:
        """Append one record, unless producers must hold back."""
        core = self._core
        core.runtime.check_writable()
        core.pressure.check()
        check_size(len(content), stream.options.max_message_bytes)
        return core.engine.publish_plain(stream, partition, [content], [value_type], core.now_ms)

    def confirm(
        self, stream: OpenStream, placed: list[Placed], size_bytes: int, result: T, done: Done[T]
    ) -> None:
        """Answer, and show the records to readers, once they are safe."""
        core = self._core
        core.appended(placed[0].count if len(placed) == 1 else sum(p.count for p in placed))
        core.exposure.written(size_bytes)

        def safe(error: NexoError | None) -> None:
            if error is None:
                core.show(stream, placed)
                done(result)
            else:
                done(error)

        mode = core.exposure.mode(stream, placed)
        core.when_appended(stream, mode, stored_here(stream, mode, safe))
