"""One load per broker: works until told to stop, notes what was confirmed, checks at the end."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable
from typing import Any, Protocol

import nexo
from nexo.errors import NexoError
from nexo.model import Broker
from nexo.protocol.ops import Op
from nexo.protocol.values import decode_value
from tests.crash.history import Findings, History

BATCH = 20
PAUSE_S = 0.005
TOPICS = 40


class Load(Protocol):
    """What a fault is let loose on."""

    broker: Broker
    label: str
    """The broker and its mode."""
    stopping: bool

    @property
    def operations(self) -> int: ...

    async def prepare(self, client: nexo.AsyncClient) -> None: ...

    async def run(self, client: nexo.AsyncClient) -> None: ...

    async def after_restart(self, client: nexo.AsyncClient) -> Findings: ...

    async def check(self, client: nexo.AsyncClient) -> Findings: ...


async def persist(step: Callable[[], Any], load: Load) -> None:
    """Repeat ``step`` until the load is stopped; what fails is tried again a little later."""
    while not load.stopping:
        try:
            await step()
        except NexoError:
            await asyncio.sleep(0.02)
        await asyncio.sleep(PAUSE_S)


async def status(client: nexo.AsyncClient, broker: Broker) -> dict[str, Any]:
    """A broker's status."""
    payload = await client.link(broker).call(Op.STATUS, bytes((broker,)), timeout_s=5)
    found: dict[str, Any] = decode_value(bytes(payload or b""))
    return found


class LoggedLoad:
    """Keeps a history of what it sends, which the end is compared with."""

    def __init__(self, kind: str, seed: int, persistence: str, *, acked_items_go: bool) -> None:
        self.label = f"{kind}, {persistence}"
        self.name = f"load-{persistence}"
        self.history = History(acked_items_go=acked_items_go)
        self.stopping = False
        self._random = random.Random(seed)
        self._persistence = persistence
        self._next = 0

    @property
    def operations(self) -> int:
        return self.history.operations

    async def after_restart(self, client: nexo.AsyncClient) -> Findings:
        return Findings()  # the work goes on; the end shows everything


class QueueLoad(LoggedLoad):
    """Pushes with priorities and delays, pops, acks; some jobs fail once."""

    broker = Broker.QUEUE

    def __init__(self, seed: int, persistence: str = "file_sync") -> None:
        super().__init__("queue", seed, persistence, acked_items_go=True)

    async def prepare(self, client: nexo.AsyncClient) -> None:
        options: Any = {"max_retries": 100_000, "persistence": self._persistence}
        await client.queue(self.name).create(**options)

    async def run(self, client: nexo.AsyncClient) -> None:
        queue: Any = client.queue(self.name, int)
        await asyncio.gather(
            persist(lambda: self._push(queue), self), persist(lambda: self._work(queue), self)
        )

    async def _push(self, queue: Any) -> None:
        items = range(self._next, self._next + BATCH)
        self._next += BATCH
        delay = 0.2 if self._random.random() < 0.2 else 0
        self.history.sent(items)
        await queue.push_many(items, priority=self._random.randrange(3), delay=delay)
        self.history.confirmed(items)

    async def _work(self, queue: Any) -> None:
        jobs = await queue.pop(BATCH, wait=0.2)
        self.history.delivered([job.value for job in jobs])
        for job in jobs:
            if self._random.random() < 0.1:
                await job.nack("later")
            else:
                self.history.acking([job.value])
                await job.ack()
                self.history.acked([job.value])

    async def check(self, client: nexo.AsyncClient) -> Findings:
        queue: Any = client.queue(self.name, int)
        while jobs := await queue.pop(1_000, wait=1):
            self.history.stored([job.value for job in jobs])
            await jobs.ack()
        return self.history.findings()


class StreamLoad(LoggedLoad):
    """Publishes keyed records to three partitions; a group consumes and acks."""

    broker = Broker.STREAM

    def __init__(self, seed: int, persistence: str = "file_async") -> None:
        super().__init__("stream", seed, persistence, acked_items_go=False)

    async def prepare(self, client: nexo.AsyncClient) -> None:
        await client.stream(self.name).create(partitions=3, persistence=self._persistence)

    async def run(self, client: nexo.AsyncClient) -> None:
        stream: Any = client.stream(self.name, int)
        await asyncio.gather(
            persist(lambda: self._publish(stream), self), persist(lambda: self._work(stream), self)
        )

    async def _publish(self, stream: Any) -> None:
        items = range(self._next, self._next + BATCH)
        self._next += BATCH
        key = f"k{self._random.randrange(8)}"
        self.history.sent(items, key)
        places = await stream.publish_many(items, keys=[key] * BATCH)
        self.history.confirmed(items, [(at.partition, at.offset) for at in places])

    async def _work(self, stream: Any) -> None:
        async with stream.consume("g", batch=BATCH, wait=0.2, max_deliveries=0) as consumer:
            while not self.stopping:
                records = list(await consumer.fetch())
                items = [record.value for record in records]
                self.history.delivered(items)
                self.history.acking(items)
                await consumer.ack(*records)
                self.history.acked(items)
                await asyncio.sleep(PAUSE_S)

    async def check(self, client: nexo.AsyncClient) -> Findings:
        stream: Any = client.stream(self.name, int)
        info = await stream.info()
        for partition, bounds in enumerate(info.partitions):
            at = 0
            while at < bounds.stable_offset:
                records = await stream.read(partition, at)
                offsets = [(partition, record.offset) for record in records]
                self.history.stored([record.value for record in records], offsets)
                at = records[-1].offset + 1
        return self.history.findings()


class RetainedLoad:
    """Publishes rising numbers, retained, on many topics: the last confirmed one must be there."""

    broker = Broker.PUBSUB
    label = "pubsub, retained"

    def __init__(self, seed: int) -> None:
        self.stopping = False
        self.operations = 0
        self._random = random.Random(seed)
        self._sent: dict[str, int] = {}
        self._confirmed: dict[str, int] = {}

    async def prepare(self, client: nexo.AsyncClient) -> None:
        await client.pubsub.publish("load", 0)

    async def run(self, client: nexo.AsyncClient) -> None:
        await persist(lambda: self._publish(client), self)

    async def _publish(self, client: nexo.AsyncClient) -> None:
        topic = f"load/{self._random.randrange(TOPICS)}"
        number = self._sent[topic] = self._sent.get(topic, 0) + 1
        await client.pubsub.publish(topic, number, retain=True)
        self._confirmed[topic] = number
        self.operations += 1

    async def after_restart(self, client: nexo.AsyncClient) -> Findings:
        return await self.check(client)

    async def check(self, client: nexo.AsyncClient) -> Findings:
        found: dict[str, int] = {}
        async with await client.pubsub.subscribe("load/#") as subscription:
            with contextlib.suppress(TimeoutError):
                while len(found) < len(self._confirmed):
                    message: Any = await subscription.get(5)
                    found[message.topic] = message.value
        return Findings(
            lost=sum(found.get(topic, 0) < n for topic, n in self._confirmed.items()),
            invented=sum(n > self._sent.get(topic, 0) for topic, n in found.items()),
        )


class SavedStoreLoad:
    """Counts up many keys; what the last finished save held is the least that must be there."""

    broker = Broker.STORE
    label = "store, snapshots"

    def __init__(self, seed: int) -> None:
        self.stopping = False
        self.operations = 0
        self._random = random.Random(seed)
        self._sent: dict[str, int] = {}
        self._confirmed: dict[str, int] = {}
        self._saved: dict[str, int] = {}
        self._before: tuple[int | None, dict[str, int]] = (None, {})
        """When the last save seen had ended, and what was confirmed before that was asked."""

    async def prepare(self, client: nexo.AsyncClient) -> None:
        await client.store.set("load", 0)

    async def run(self, client: nexo.AsyncClient) -> None:
        await asyncio.gather(
            persist(lambda: self._write(client), self), persist(lambda: self._watch(client), self)
        )

    async def _write(self, client: nexo.AsyncClient) -> None:
        key = f"load/{self._random.randrange(TOPICS)}"
        number = self._sent[key] = self._sent.get(key, 0) + 1
        await client.store.set(key, number)
        self._confirmed[key] = number
        self.operations += 1

    async def _watch(self, client: nexo.AsyncClient) -> None:
        """A new save, seen when none ran at the look before, has all that look confirmed."""
        confirmed = dict(self._confirmed)
        saving = (await status(client, Broker.STORE))["snapshot"]
        saved_ms, floor = self._before
        if saving["running"]:
            return
        if saving["saved_ms"] not in (None, saved_ms):
            self._saved = floor
        self._before = (saving["saved_ms"], confirmed)

    async def after_restart(self, client: nexo.AsyncClient) -> Findings:
        """Compare, and go on from what is there: what was not saved is rightly gone."""
        keys = list(self._sent)
        found = dict(zip(keys, await client.store.mget(keys), strict=True))
        findings = Findings(
            lost=sum((found.get(key) or 0) < n for key, n in self._saved.items()),
            invented=sum((n or 0) > self._sent[key] for key, n in found.items()),
        )
        self._confirmed = {key: n for key, n in found.items() if n}
        self._saved = dict(self._confirmed)
        self._before = (None, {})
        return findings

    async def check(self, client: nexo.AsyncClient) -> Findings:
        return await self.after_restart(client)
