"""Calls of every kind, as a client makes them all day, and what they must have done (SPEC O3).

Written once for both clients: the sync one returns what the async one lets its caller await.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import nexo
from nexo.errors import NexoError

JOBS_AT_ONCE = 3


@dataclass
class Tally:
    """What the callers saw."""

    most: int = 0
    """The load ends after this many calls; 0 for never."""
    stopped: threading.Event = field(default_factory=threading.Event)
    calls: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    longest_s: float = 0.0
    sums: Counter[str] = field(default_factory=Counter)
    """What must be there at the end: by counter, queue and stream."""

    @property
    def ended(self) -> bool:
        return self.stopped.is_set() or bool(self.most and self.calls.total() >= self.most)

    async def call(self, kind: str, call: Callable[..., Any], *args: Any, **given: Any) -> Any:
        """Make a call; None if it failed."""
        began_s = time.monotonic()
        try:
            return await done(call(*args, **given))
        except NexoError as error:
            self.failures.append(f"{kind}: {error.code}: {error}")
        finally:
            self.calls[kind] += 1
            self.longest_s = max(self.longest_s, time.monotonic() - began_s)

    def add(self, what: str, count: int = 1) -> None:
        self.sums[what] += count


async def done(found: Any) -> Any:
    """The result of either client's call."""
    return await found if inspect.isawaitable(found) else found


Kind = Callable[[Any, str, Tally], Awaitable[None]]


async def store(client: Any, name: str, tally: Tally) -> None:
    """Counters count each call once; compare-and-set finds what it set."""
    value: int | None = None
    while not tally.ended:
        await tally.call("incr", client.store.incr, name)
        tally.add(name)
        await tally.call("set", client.store.set, f"{name}-set", name)
        await tally.call("get", client.store.get, f"{name}-set")
        was, value = value, tally.calls.total()
        if was is None:
            swapped = await tally.call("set", client.store.set, f"{name}-cas", value)
        else:
            swapped = await tally.call("cas", client.store.cas, f"{name}-cas", was, value)
        if swapped is False:
            tally.failures.append("cas: the value is not the one that was set")


async def queue(client: Any, name: str, tally: Tally) -> None:
    """What one call pushes another pops and acks."""
    jobs = client.queue("jobs")
    while not tally.ended:
        await tally.call("push", jobs.push, name)
        await tally.call("push_many", jobs.push_many, [name] * (JOBS_AT_ONCE - 1))
        tally.add("pushed", JOBS_AT_ONCE)
        batch = await tally.call("pop", jobs.pop, JOBS_AT_ONCE, wait=1)
        if batch:
            tally.add("popped", len(batch))
            first, *_ = batch
            await tally.call("ack", first.ack)
            await tally.call("ack batch", batch.ack)


async def idle_queue(client: Any, name: str, tally: Tally) -> None:
    """A long poll that a restart meets."""
    jobs = client.queue("idle")
    while not tally.ended:
        await tally.call("long poll", jobs.pop, wait=0.5)


async def stream(client: Any, name: str, tally: Tally) -> None:
    """Publishes with acks, each stored once."""
    records = client.stream("records")
    while not tally.ended:
        await tally.call("publish", records.publish, name)
        await tally.call("publish keyed", records.publish, name, key=name)
        await tally.call("publish_many", records.publish_many, [name, name])
        tally.add("published", 4)


async def group(client: Any, name: str, tally: Tally) -> None:
    """A consumer of a shared group that fetches and acks by itself."""
    consumer = client.stream("records").consume("readers", batch=20)
    while not tally.ended:
        records = await tally.call("fetch", consumer.fetch, wait=0.5)
        if records:
            await tally.call("ack records", records.ack)
    await done(consumer.close())


async def transactions(client: Any, name: str, tally: Tally) -> None:
    """Two records, together."""
    while not tally.ended:
        transaction = client.transaction()
        if await tally.call("begin", transaction.begin) is None:
            continue
        for _ in range(2):
            await tally.call("publish within", transaction.publish, "together", name)
        await tally.call("commit", transaction.commit)
        tally.add("together", 2)


async def pubsub(client: Any, name: str, tally: Tally) -> None:
    """Messages that wait for their acknowledgement, some kept."""
    while not tally.ended:
        await tally.call("message", client.pubsub.publish, f"t/{name}", name)
        await tally.call("retained", client.pubsub.publish, f"t/{name}", name, retain=True)
        await tally.call("messages", client.pubsub.publish_many, f"t/{name}", [name] * 3)


async def across(client: Any, name: str, tally: Tally) -> None:
    """Takes a job of one broker, writes to others, then acks."""
    jobs, records = client.queue("across"), client.stream("results")
    while not tally.ended:
        await tally.call("push", jobs.push, name)
        tally.add("results")
        batch = await tally.call("pop", jobs.pop, 1, wait=1)
        if batch:
            await tally.call("publish", records.publish, batch[0].value)
            await tally.call("incr", client.store.incr, "across")
            await tally.call("ack", batch[0].ack)


KINDS: tuple[Kind, ...] = (
    store, queue, idle_queue, stream, group, transactions, pubsub, across,
)  # fmt: skip


async def prepare(client: nexo.AsyncClient) -> None:
    for name in ("jobs", "idle", "across"):
        await client.queue(name).create()
    for name in ("records", "together", "results"):
        await client.stream(name).create(partitions=2)


async def async_clients(url: str, number: int, tally: Tally, timeout_s: float) -> None:
    """Every kind at once over one async client."""
    async with nexo.AsyncClient(url, timeout=timeout_s) as client:
        kinds = (kind(client, f"{kind.__name__}-a{number}", tally) for kind in KINDS)
        await asyncio.gather(*kinds)


def sync_threads(url: str, number: int, tally: Tally, timeout_s: float) -> list[threading.Thread]:
    """Every kind in a thread of its own, over one sync client."""
    client = nexo.Client(url, timeout=timeout_s)
    left = list(KINDS)

    def work(kind: Kind) -> None:
        try:
            asyncio.run(kind(client, f"{kind.__name__}-s{number}", tally))  # type: ignore[arg-type]
        finally:
            left.remove(kind)
            if not left:
                client.close()

    return [threading.Thread(target=work, args=(kind,)) for kind in KINDS]


async def found(client: nexo.AsyncClient, tally: Tally) -> Counter[str]:
    """The same sums as the tally's, as the server has them."""
    sums: Counter[str] = Counter()
    for name in tally.sums:
        if name.startswith("store-"):
            sums[name] = await client.store.get(name, int, default=0)
    sums["published"] = await records_of(client, "records")
    sums["together"] = await records_of(client, "together")
    sums["results"] = await records_of(client, "results") + await jobs_of(client, "across")
    left = await jobs_of(client, "jobs")
    sums["pushed"], sums["popped"] = tally.sums["popped"] + left, tally.sums["popped"]
    return sums


async def records_of(client: nexo.AsyncClient, name: str) -> int:
    """How many records are readable."""
    total = 0
    for partition in range(2):
        offset = 0
        while read := await client.stream(name).read(partition, offset):
            total, offset = total + len(read), read[-1].offset + 1
    return total


async def jobs_of(client: nexo.AsyncClient, name: str) -> int:
    total = 0
    while batch := await client.queue(name).pop(1_000):
        total += len(batch)
        await batch.ack()
    return total
