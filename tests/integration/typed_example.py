"""The documented types as a program uses them, for mypy strict to check (finding U4)."""

from __future__ import annotations

from dataclasses import dataclass

import nexo
from nexo.types import AsyncJob, AsyncStreamRecord, Job, Message


@dataclass
class Order:
    id: int


async def on_record(record: AsyncStreamRecord[Order]) -> None:
    if record.attempt > 1:
        await record.nack("again", delay=1)
    await record.ack()


async def on_job(job: AsyncJob[Order]) -> int:
    return job.value.id


def in_thread(job: Job[Order]) -> None:
    job.nack(reason="no", delay="5s")


def on_message(message: Message[Order]) -> int:
    return message.value.id


async def program(url: str) -> list[Order | None]:
    async with nexo.AsyncClient(url, timeout="30s") as client:
        stream = await client.stream("orders", Order).create(retention={"max_age": "7d"})
        await stream.subscribe("billing", on_record, ack_wait="1m", time_limit=30)
        await client.queue("orders", Order).subscribe(on_job)
        await client.pubsub.subscribe("orders", on_message, type_=Order)
        found: list[Order | None] = await client.store.mget(["a", "b"], Order)
        return found
