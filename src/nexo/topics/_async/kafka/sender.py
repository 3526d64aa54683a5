"""Sends to a real Kafka; batches, linger and idempotence are aiokafka's."""

from __future__ import annotations

import asyncio
import functools
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from nexo.errors import Conflict, NexoError
from nexo.topics._async.producer.delivery import Delivery
from nexo.topics.kafka import encoded, library, translated
from nexo.topics.model import ProducerRecord, RecordMetadata, SenderOptions
from nexo.topics.packing import FailedSends, Partitioner


class KafkaSender:
    """As `NexoSender`, on an AIOKafkaProducer, which starts with the first message."""

    def __init__(
        self, connection: dict[str, Any], options: SenderOptions, partitioner: Partitioner
    ) -> None:
        self._make: Callable[..., Any] = functools.partial(
            library().AIOKafkaProducer,
            **connection,
            compression_type=options.compression,
            linger_ms=int(options.linger_ms),
            enable_idempotence=options.idempotent,
            partitioner=functools.partial(_partition, partitioner),
        )
        self._options = options
        self._producer: Any = None
        self._waiting: deque[tuple[str, ProducerRecord, Delivery]] = deque()
        self._pump: asyncio.Task[None] | None = None
        self._lock = asyncio.Lock()
        self._closed = False
        self._failed = FailedSends()

    def send(self, topic: str, record: ProducerRecord) -> Delivery:
        """Hand a message over to aiokafka, in order."""
        if self._closed:
            raise Conflict("the producer is closed")
        delivery = Delivery()
        self._waiting.append((topic, record, delivery))
        if self._pump is None or self._pump.done():
            self._pump = asyncio.get_running_loop().create_task(self._run())
        return delivery

    async def _run(self) -> None:
        while self._waiting:
            topic, record, delivery = self._waiting.popleft()
            try:
                with translated():
                    producer = await self._started()
                    future = await producer.send(topic, **encoded(record))
            except NexoError as error:
                self._failed.add([delivery], error)
                continue
            future.add_done_callback(functools.partial(self._settle, delivery))

    async def _started(self) -> Any:
        async with self._lock:
            if self._producer is None:
                producer = self._make()
                await producer.start()
                self._producer = producer
            return self._producer

    async def send_together(
        self, topic: str, records: Sequence[ProducerRecord]
    ) -> list[RecordMetadata]:
        """In a transaction of a producer of its own."""
        if not records:
            return []
        name = f"{self._options.name or 'nexo'}-{id(self):x}"
        producer = self._make(enable_idempotence=True, transactional_id=name)
        with translated():
            await producer.start()
            try:
                async with producer.transaction():
                    sent = [await producer.send(topic, **encoded(each)) for each in records]
                    places = [await future for future in sent]
            finally:
                await producer.stop()
        return [RecordMetadata(topic, place.partition, place.offset) for place in places]

    async def flush(self) -> None:
        """Wait for what was sent."""
        if self._pump is not None:
            await self._pump
        if self._producer is not None:
            with translated():
                await self._producer.flush()

    async def close(self) -> None:
        """Flush and stop; raises a failure that nobody has asked for."""
        self._closed = True
        await self.flush()
        if self._producer is not None:
            with translated():
                await self._producer.stop()
        self._failed.raise_unasked()

    def _settle(self, delivery: Delivery, future: asyncio.Future[Any]) -> None:
        if future.cancelled():
            error = Conflict("the producer was closed before the message was sent")
            self._failed.add([delivery], error)
            return
        try:
            with translated():
                place = future.result()
        except NexoError as error:
            self._failed.add([delivery], error)
        else:
            delivery.settle(RecordMetadata(place.topic, place.partition, place.offset))


def _partition(
    partitioner: Partitioner, key: bytes | None, every: list[int], available: list[int]
) -> int:
    if key is None:
        chosen: int = library("aiokafka.partitioner").DefaultPartitioner()(key, every, available)
        return chosen
    return every[partitioner(key, len(every))]
