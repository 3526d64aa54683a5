"""Topics on a real Kafka for threads: the async backend, driven on a loop in a thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from nexo.topics._async.kafka.backend import KafkaBackend as AsyncKafkaBackend
from nexo.topics._async.kafka.backend import KafkaReader as AsyncReader
from nexo.topics._async.kafka.backend import KafkaSender as AsyncSender
from nexo.topics._sync.consumer.membership import Rebalanced
from nexo.topics._sync.kafka.loop import LoopThread
from nexo.topics._sync.producer.delivery import Delivery
from nexo.topics.model import (
    Commits,
    Committed,
    GroupDescription,
    ProducerRecord,
    ReaderOptions,
    RecordMetadata,
    SenderOptions,
    TopicDescription,
    TopicMessage,
    TopicPartition,
)
from nexo.topics.packing import FailedSends


class KafkaBackend:
    """As `NexoTopicsBackend`, on a Kafka cluster."""

    def __init__(self, url: str) -> None:
        self._thread = LoopThread()
        self._backend = AsyncKafkaBackend(url)

    def create_topic(
        self, name: str, partitions: int, replication_factor: int, config: Mapping[str, Any]
    ) -> None:
        """As the async one."""
        work = self._backend.create_topic(name, partitions, replication_factor, config)
        self._thread.run(work)

    def create_partitions(self, name: str, partitions: int) -> None:
        """As the async one."""
        self._thread.run(self._backend.create_partitions(name, partitions))

    def list_topics(self) -> list[str]:
        """As the async one."""
        return self._thread.run(self._backend.list_topics())

    def describe_topic(self, name: str) -> TopicDescription:
        """As the async one."""
        return self._thread.run(self._backend.describe_topic(name))

    def delete_topic(self, name: str) -> None:
        """As the async one."""
        self._thread.run(self._backend.delete_topic(name))

    def compact_topic(self, name: str) -> int:
        """As the async one."""
        return self._thread.run(self._backend.compact_topic(name))

    def describe_group(self, group_id: str) -> GroupDescription:
        """As the async one."""
        return self._thread.run(self._backend.describe_group(group_id))

    def newest(
        self, topic: str, key: bytes | None, type_: type[Any] | None
    ) -> dict[str | bytes, TopicMessage[Any]]:
        """As the async one."""
        return self._thread.run(self._backend.newest(topic, key, type_))

    def sender(self, options: SenderOptions, partitioner: Any) -> KafkaSender:
        """An AIOKafkaProducer."""

        async def make() -> AsyncSender:
            return self._backend.sender(options, partitioner)

        return KafkaSender(self._thread, self._thread.run(make()))

    def reader(self, options: ReaderOptions, listener: Rebalanced, type_: Any) -> KafkaReader:
        """An AIOKafkaConsumer."""

        async def make() -> AsyncReader:
            return self._backend.reader(options, _OnThread(listener), type_)

        return KafkaReader(self._thread, self._thread.run(make()))

    def close(self) -> None:
        """End the loop."""
        self._thread.close()


class _OnThread:
    """Has a sync listener called in a thread, so that it may call back."""

    def __init__(self, listener: Rebalanced) -> None:
        self._listener = listener

    async def revoked(self, partitions: Sequence[TopicPartition]) -> None:
        await asyncio.to_thread(self._listener.revoked, partitions)

    async def assigned(self, partitions: Sequence[TopicPartition]) -> None:
        await asyncio.to_thread(self._listener.assigned, partitions)


class KafkaSender:
    """The async sender, for threads."""

    def __init__(self, thread: LoopThread, sender: AsyncSender) -> None:
        self._thread = thread
        self._sender = sender
        self._failed = FailedSends()

    def send(self, topic: str, record: ProducerRecord) -> Delivery:
        """Hand a message over, in order."""
        delivery = Delivery()

        async def sent() -> RecordMetadata:
            return await self._sender.send(topic, record).result()

        def settle(future: Future[RecordMetadata]) -> None:
            error = future.exception()
            if error is not None:
                self._failed.add([delivery], error)
            else:
                delivery.settle(future.result())

        self._thread.start(sent()).add_done_callback(settle)
        return delivery

    def send_together(self, topic: str, records: Sequence[ProducerRecord]) -> list[RecordMetadata]:
        """As the async one."""
        return self._thread.run(self._sender.send_together(topic, records))

    def flush(self) -> None:
        """As the async one."""
        self._thread.run(self._sender.flush())

    def close(self) -> None:
        """As the async one."""
        self._thread.run(self._sender.close())
        self._failed.raise_unasked()


class KafkaReader:
    """The async reader, for threads."""

    def __init__(self, thread: LoopThread, reader: AsyncReader) -> None:
        self._thread = thread
        self._reader = reader

    @property
    def member(self) -> str:
        """As the async one."""
        return self._reader.member

    @property
    def generation(self) -> int:
        """As the async one."""
        return self._reader.generation

    @property
    def assignment(self) -> Sequence[TopicPartition]:
        """As the async one."""
        return self._reader.assignment

    def join(self) -> None:
        """As the async one."""
        self._thread.run(self._reader.join())

    def fetch(self, max_records: int, timeout_s: float) -> list[TopicMessage[Any]]:
        """As the async one."""
        return self._thread.run(self._reader.fetch(max_records, timeout_s))

    def is_up(self) -> bool:
        """As the async one."""
        return self._thread.run(self._reader.is_up())

    def commit(self, commits: Commits) -> None:
        """As the async one."""
        self._thread.run(self._reader.commit(commits))

    def committed(self, at: TopicPartition) -> Committed | None:
        """As the async one."""
        return self._thread.run(self._reader.committed(at))

    def bounds(self, at: TopicPartition) -> tuple[int, int]:
        """As the async one."""
        return self._thread.run(self._reader.bounds(at))

    def offset_at(self, at: TopicPartition, time_ms: int) -> int:
        """As the async one."""
        return self._thread.run(self._reader.offset_at(at, time_ms))

    def seek(self, positions: Mapping[TopicPartition, int]) -> None:
        """As the async one."""
        self._thread.run(self._reader.seek(positions))

    def unread(self, positions: Mapping[TopicPartition, int]) -> None:
        """As the async one."""
        self._thread.run(_called(lambda: self._reader.unread(positions)))

    def pause(self, partitions: Sequence[TopicPartition], *, paused: bool) -> None:
        """As the async one."""
        self._thread.run(_called(lambda: self._reader.pause(partitions, paused=paused)))

    def interrupt(self) -> None:
        """As the async one."""
        self._reader.interrupt()

    def close(self) -> None:
        """As the async one."""
        self._thread.run(self._reader.close())


async def _called(work: Callable[[], None]) -> None:
    """A plain call, made on the loop."""
    work()
