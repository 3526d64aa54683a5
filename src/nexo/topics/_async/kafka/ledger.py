"""Transactions on a real Kafka: messages and offsets together. State needs a Nexo server."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, NoReturn

from nexo.errors import InvalidOption, TransactionAborted
from nexo.topics._async.consumer.message_source import MessageSource
from nexo.topics._async.kafka.reader import kafka_offsets
from nexo.topics._async.once.ledger import Certain
from nexo.topics.kafka import connection_options, encoded, library, translated
from nexo.topics.model import Commits, ProducerRecord, RecordMetadata
from nexo.topics.once import Entry


class KafkaLedger:
    """A ledger whose transactions are Kafka's; the context's name is its transactional id."""

    def __init__(self, url: str, name: str) -> None:
        self._options = connection_options(url)
        self._name = name
        self._producer: Any = None
        self._starting = asyncio.Lock()
        self.turn = asyncio.Lock()
        """A Kafka producer has one transaction at a time."""
        library()

    async def producer(self) -> Any:
        """The one transactional producer, started."""
        async with self._starting:
            if self._producer is None:
                producer = library().AIOKafkaProducer(**self._options, transactional_id=self._name)
                with translated():
                    await producer.start()
                self._producer = producer
            return self._producer

    async def load(self, table: str, key: str) -> Entry:
        """Not on Kafka."""
        _refuse()

    async def scan(self, table: str) -> Mapping[str, Entry]:
        """Not on Kafka."""
        _refuse()

    def transaction(self, timeout_s: float) -> KafkaTransaction:
        """A transaction of the producer."""
        return KafkaTransaction(self)

    async def close(self) -> None:
        if self._producer is not None:
            with translated():
                await self._producer.stop()


class KafkaTransaction(Certain):
    """A transaction of the producer."""

    def __init__(self, ledger: KafkaLedger) -> None:
        self._ledger = ledger
        self._producer: Any = None

    async def begin(self) -> None:
        """Wait for the turn, and open it."""
        await self._ledger.turn.acquire()
        try:
            self._producer = await self._ledger.producer()
            with translated():
                await self._producer.begin_transaction()
        except BaseException:
            self._ledger.turn.release()
            raise

    async def put(self, table: str, key: str, content: bytes | None) -> None:
        """Not on Kafka."""
        _refuse()

    def rely_on(self, table: str, key: str, offset: int) -> None:
        """Not on Kafka."""
        _refuse()

    async def produce(self, topic: str, record: ProducerRecord) -> RecordMetadata:
        """Write a message that readers of committed messages see after the commit."""
        with translated():
            place = await self._producer.send_and_wait(topic, **encoded(record))
        return RecordMetadata(topic, place.partition, place.offset)

    async def add_offsets(self, source: MessageSource, commits: Commits) -> None:
        """Offsets as part of the transaction."""
        with translated():
            await self._producer.send_offsets_to_transaction(
                kafka_offsets(commits), source.group_id
            )

    async def commit(self) -> None:
        """Commit; whatever prevents it, it is rolled back."""
        errors = library("aiokafka.errors")
        try:
            await self._producer.commit_transaction()
        except errors.KafkaError as error:
            raise TransactionAborted(f"the transaction was rolled back: {error}") from error
        finally:
            self._ledger.turn.release()

    async def abort(self) -> None:
        try:
            with translated():
                await self._producer.abort_transaction()
        finally:
            self._ledger.turn.release()


def _refuse() -> NoReturn:
    raise InvalidOption("state, results and outbox need a Nexo server: Kafka keeps only topics")
