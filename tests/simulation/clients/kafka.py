"""Kafka's door, through aiokafka: who produces, who consumes, and who writes in transactions."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.errors import KafkaError

from nexo.model import Broker
from tests.simulation.clients.actor import Actor
from tests.simulation.oracle.outcomes import Outcome, note
from tests.simulation.oracle.stream import StreamOracle
from tests.simulation.oracle.transactions import Place, TransactionOracle, Tried

PORT = 7654
_PATIENCE_S = 20.0
"""How long one operation of aiokafka may take here; it tries again by itself until then."""


class KafkaActor(Actor):
    """Common to all: a producer that is made anew after it has failed."""

    broker = Broker.STREAM
    producer_options: dict[str, Any] = {}  # noqa: RUF012 - read only

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.bootstrap = f"m0:{PORT}"
        self._producer: Any = None

    async def producer(self) -> Any:
        if self._producer is None:
            made = AIOKafkaProducer(
                bootstrap_servers=self.bootstrap,
                request_timeout_ms=5_000,
                retry_backoff_ms=200,
                acks="all",
                **self.producer_options,
            )
            self._producer = made
            await made.start()
        return self._producer

    async def forget(self) -> None:
        """Give the producer up."""
        producer, self._producer = self._producer, None
        if producer is not None:
            with contextlib.suppress(KafkaError, TimeoutError):
                async with asyncio.timeout(_PATIENCE_S):
                    await producer.stop()

    async def ask(self, what: str, work: Awaitable[Any]) -> Outcome:
        """Whatever aiokafka raises leaves it open whether it was done."""
        self.ops += 1
        try:
            async with asyncio.timeout(_PATIENCE_S):
                ended = Outcome("ok", await work)
        except (KafkaError, TimeoutError) as error:
            ended = Outcome("unsure", error=error)
        except Exception as error:
            self.world.found("kafka's errors", f"{self.name} {what} raised {error!r}")
            ended = Outcome("unsure", error=error)
        note(self.world, f"{self.name} {what}", ended)
        return ended

    @contextlib.asynccontextmanager
    async def reader(self, topic: str, partitions: int) -> AsyncIterator[Any]:
        """A consumer of all partitions from their beginnings; sees what is committed."""
        consumer = AIOKafkaConsumer(
            bootstrap_servers=self.bootstrap,
            isolation_level="read_committed",
            auto_offset_reset="earliest",
        )
        await consumer.start()
        try:
            consumer.assign([TopicPartition(topic, number) for number in range(partitions)])
            await consumer.seek_to_beginning()
            yield consumer
        finally:
            await consumer.stop()

    async def everything(self, topic: str, partitions: int) -> dict[tuple[int, int], str]:
        """By partition and offset."""
        found: dict[tuple[int, int], str] = {}
        async with self.reader(topic, partitions) as consumer:
            idle = 0
            while idle < 3:
                batches = await consumer.getmany(timeout_ms=1_000)
                idle = 0 if batches else idle + 1
                for place, records in batches.items():
                    found |= {(place.partition, one.offset): one.value.decode() for one in records}
        return found

    async def until_read(self, topic: str, partitions: int) -> dict[tuple[int, int], str]:
        until_s = self.world.now_s + 40
        while True:
            try:
                return await self.everything(topic, partitions)
            except KafkaError as error:
                if self.world.now_s > until_s:
                    self.world.found("served again", f"{self.name}: {error!r} when all was quiet")
                    return {}
                await asyncio.sleep(0.5)


class KafkaPublisher(KafkaActor):
    """An idempotent producer; another actor of its kind writes to the same topic."""

    think_s = (0.0, 0.6)
    topic = "clicks"
    producer_options = {"enable_idempotence": True}  # noqa: RUF012

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.oracle = self.system.model("kafka", lambda: StreamOracle(self.world, self.topic, 0.0))
        self._number = 0

    async def begin(self) -> None:
        await self.client.stream(self.topic).create(partitions=2, persistence="file_sync")

    async def act(self) -> None:
        started = await self.ask("start", self.producer())
        if not started.ok:
            await self.forget()
            return
        count = self.chance.choice((1, 1, 5))
        results = await asyncio.gather(*(self._publish(started.value) for _ in range(count)))
        if not all(results):
            await self.forget()

    async def _publish(self, producer: Any) -> bool:
        self._number += 1
        value = f"{self.name}:{self._number}"
        key = self.chance.choice((None, "a", "b"))
        sent = self.oracle.sending(value, self.name, self._number, key)
        work = producer.send_and_wait(self.topic, value.encode(), key=key and key.encode())
        ended = await self.ask(f"produce {value}", work)
        self.oracle.sent(sent, ended)
        return ended.ok

    async def check(self) -> None:
        await self.forget()
        if self.system.last("kafka", 2):
            found = await self.until_read(self.topic, 2)
            self.oracle.at_end((*place, value) for place, value in sorted(found.items()))


class KafkaTransactor(KafkaActor):
    """Writes several records whole or not at all."""

    think_s = (0.0, 1.5)
    topic = "transfers"

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.producer_options = {"transactional_id": self.name, "transaction_timeout_ms": 10_000}
        self.oracle = self.system.model("kafka transactions", lambda: TransactionOracle(self.world))

    async def begin(self) -> None:
        await self.client.stream(self.topic).create(partitions=2, persistence="file_sync")

    async def act(self) -> None:
        name = f"{self.name}.{self.ops}"
        started = await self.ask("start", self.producer())
        if not started.ok:
            await self.forget()
            return
        self.oracle.tried[name] = tried = Tried()
        ended = await self.ask(f"transaction {name}", self._transact(started.value, name, tried))
        if not ended.ok:
            tried.kind = "unsure"
            await self.forget()

    async def _transact(self, producer: Any, name: str, tried: Tried) -> bool:
        await producer.begin_transaction()
        tried.kind = "open"
        for number in range(self.chance.randint(1, 4)):
            value = f"{name}:{number}"
            await producer.send_and_wait(self.topic, value.encode(), partition=number % 2)
            tried.records.add(value)
        tried.kind = "unsure"
        if self.chance.random() < 0.3:
            await producer.abort_transaction()
            tried.kind = "refused"
        else:
            await producer.commit_transaction()
            tried.kind = "ok"
        return True

    async def check(self) -> None:
        await self.forget()
        await asyncio.sleep(15)  # what nobody ended has timed out
        if self.system.last("kafka transactions", 2):
            found = await self.until_read(self.topic, 2)
            places: dict[Place, str] = {
                (self.topic, *place): value for place, value in found.items()
            }
            self.oracle.at_end(places)
