"""Transactions on a real Kafka for threads: the async ledger, driven on a loop in a thread."""

from __future__ import annotations

from collections.abc import Mapping

from nexo.topics._async.kafka.ledger import KafkaLedger as AsyncKafkaLedger
from nexo.topics._async.kafka.ledger import KafkaTransaction as AsyncKafkaTransaction
from nexo.topics._sync.consumer.message_source import MessageSource
from nexo.topics._sync.kafka.loop import LoopThread
from nexo.topics._sync.once.ledger import Certain
from nexo.topics.model import Commits, ProducerRecord, RecordMetadata
from nexo.topics.once import Entry


class KafkaLedger:
    """A ledger whose transactions are Kafka's."""

    def __init__(self, url: str, name: str) -> None:
        self._thread = LoopThread()
        self._ledger = self._thread.run(self._make(url, name))

    @staticmethod
    async def _make(url: str, name: str) -> AsyncKafkaLedger:
        return AsyncKafkaLedger(url, name)

    def load(self, table: str, key: str) -> Entry:
        """Not on Kafka."""
        return self._thread.run(self._ledger.load(table, key))

    def scan(self, table: str) -> Mapping[str, Entry]:
        """Not on Kafka."""
        return self._thread.run(self._ledger.scan(table))

    def transaction(self, timeout_s: float) -> KafkaTransaction:
        """A transaction of the producer."""
        return KafkaTransaction(self._thread, self._ledger.transaction(timeout_s))

    def close(self) -> None:
        """Stop the producer and the loop."""
        self._thread.run(self._ledger.close())
        self._thread.close()


class KafkaTransaction(Certain):
    """The async transaction, for threads."""

    def __init__(self, thread: LoopThread, transaction: AsyncKafkaTransaction) -> None:
        self._thread = thread
        self._transaction = transaction

    def begin(self) -> None:
        """As the async one."""
        self._thread.run(self._transaction.begin())

    def put(self, table: str, key: str, content: bytes | None) -> None:
        """Not on Kafka."""
        self._thread.run(self._transaction.put(table, key, content))

    def rely_on(self, table: str, key: str, offset: int) -> None:
        """Not on Kafka."""
        self._transaction.rely_on(table, key, offset)

    def produce(self, topic: str, record: ProducerRecord) -> RecordMetadata:
        """As the async one."""
        return self._thread.run(self._transaction.produce(topic, record))

    def add_offsets(self, source: MessageSource, commits: Commits) -> None:
        """As the async one, which needs no more of the source than its group."""
        self._thread.run(self._transaction.add_offsets(source, commits))  # type: ignore[arg-type]

    def commit(self) -> None:
        """As the async one."""
        self._thread.run(self._transaction.commit())

    def abort(self) -> None:
        """As the async one."""
        self._thread.run(self._transaction.abort())
