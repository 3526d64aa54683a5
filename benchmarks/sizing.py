"""How much memory one more connection, key, subscription, job or stream takes in the server.

``python -m benchmarks.sizing`` prints the table of docs/howto/sizing.md. Each row starts a fresh
server, reads the broker's resident memory, adds so many of a thing, and divides the difference.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import nexo
from nexo import testing
from nexo.model import Broker

Fill = Callable[[nexo.AsyncClient, str, int], Awaitable[contextlib.AsyncExitStack | None]]

BATCH = 10_000
VALUE = b"x" * 64


@dataclass(frozen=True)
class Row:
    """One kind of thing, in one broker's process."""

    thing: str
    broker: Broker
    count: int
    fill: Fill


async def _connections(_: nexo.AsyncClient, url: str, count: int) -> contextlib.AsyncExitStack:
    stack = contextlib.AsyncExitStack()
    for _number in range(count):
        client = await stack.enter_async_context(nexo.AsyncClient(url))
        await client.store.get("key")
    return stack


async def _keys(client: nexo.AsyncClient, _: str, count: int) -> None:
    for start in range(0, count, BATCH):
        await client.store.mset({f"key:{n:012}": VALUE for n in range(start, start + BATCH)})


async def _subscriptions(client: nexo.AsyncClient, _: str, count: int) -> contextlib.AsyncExitStack:
    stack = contextlib.AsyncExitStack()
    for number in range(count):
        subscription = await client.pubsub.subscribe(f"sensors/{number}/temperature")
        await stack.enter_async_context(subscription)
    return stack


async def _retained(client: nexo.AsyncClient, _: str, count: int) -> None:
    for start in range(0, count, 1_000):
        await asyncio.gather(
            *(
                client.pubsub.publish(f"sensors/{number}/temperature", VALUE, retain=True)
                for number in range(start, start + 1_000)
            )
        )


async def _jobs(client: nexo.AsyncClient, _: str, count: int) -> None:
    queue = await client.queue("jobs").create(persistence="file_async")
    for _start in range(0, count, BATCH):
        await queue.push_many([VALUE] * BATCH)


async def _queues(client: nexo.AsyncClient, _: str, count: int) -> None:
    for number in range(count):
        await client.queue(f"queue-{number}").create(persistence="file_async")


async def _streams(client: nexo.AsyncClient, _: str, count: int) -> None:
    for number in range(count):
        stream = await client.stream(f"stream-{number}").create()
        await stream.publish(VALUE)


async def _groups(client: nexo.AsyncClient, _: str, count: int) -> None:
    stream = await client.stream("stream").create()
    await stream.publish(VALUE)
    for number in range(count):
        await stream.group(f"group-{number}").seek("beginning")


async def _records(client: nexo.AsyncClient, _: str, count: int) -> None:
    stream = await client.stream("stream").create(retention={"max_bytes": 0, "max_age": 0})
    for _start in range(0, count, BATCH):
        await stream.publish_many([VALUE] * BATCH)


ROWS = (
    Row("idle connection", Broker.STORE, 500, _connections),
    Row("key with a value of 64 B", Broker.STORE, 200_000, _keys),
    Row("subscription of one client", Broker.PUBSUB, 5_000, _subscriptions),
    Row("retained message of 64 B", Broker.PUBSUB, 50_000, _retained),
    Row("waiting job of 64 B", Broker.QUEUE, 200_000, _jobs),
    Row("queue", Broker.QUEUE, 500, _queues),
    Row("stream with one partition", Broker.STREAM, 1_000, _streams),
    Row("group", Broker.STREAM, 1_000, _groups),
    Row("stored record of 64 B", Broker.STREAM, 1_000_000, _records),
)


async def _memory(client: nexo.AsyncClient, broker: Broker) -> int:
    """The resident memory of a broker's process."""
    info = await client.info()
    return int(getattr(info, broker.label).process.rss_bytes)


async def measure(row: Row, url: str) -> tuple[int, float]:
    """What the process took before, and what each of the things added."""
    async with nexo.AsyncClient(url) as client:
        before = await _memory(client, row.broker)
        held = await row.fill(client, url, row.count)
        after = await _memory(client, row.broker)
        if held is not None:
            await held.aclose()
    return before, (after - before) / row.count


def main() -> None:
    """Print the table."""
    print("| one more | in the process of | bytes |\n|---|---|---|")
    idle = {}
    for row in ROWS:
        with testing.process(dashboard=False) as server:
            before, each = asyncio.run(measure(row, server.url))
        idle[row.broker.label] = before
        shown = f"{max(each, 0):,.0f}" if each >= 10 else "less than 10"
        print(f"| {row.thing} | {row.broker.label} | {shown} |", flush=True)
    started = ", ".join(f"{name} {size / 1e6:.0f} MB" for name, size in idle.items())
    print(f"\nIdle: {started}.")


if __name__ == "__main__":
    main()
