"""Planned restarts under Kafka clients, ``nexo.topics`` and Celery: no call fails (SPEC O3; T9).

``SOAK=1`` restarts eight times.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import sys
import threading
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from celery import Celery
from celery.contrib.testing.worker import start_worker
from celery.result import AsyncResult
from confluent_kafka import Consumer, KafkaException, Message, Producer

import nexo
from nexo.testing import Process
from nexo.topics import AsyncConsumer, AsyncTopic
from tests.timing import eventually

SOAK = bool(os.environ.get("SOAK"))
RESTARTS = 8 if SOAK else 2
PATIENCE_S = 60.0
KINDS = {
    "confluent produce", "init transactions", "begin transaction", "send within",
    "commit transaction", "consume", "commit offsets", "aiokafka send", "aiokafka getmany",
    "aiokafka commit", "topics produce", "topics read", "topics commit",
    "delay", "result",
}  # fmt: skip


class Load:
    """What the callers saw."""

    def __init__(self, process: Process) -> None:
        self.url = process.url
        self.bootstrap = f"127.0.0.1:{process.port}"
        self.stopped = threading.Event()
        self.calls: Counter[str] = Counter()
        self.failures: list[str] = []
        self.written: dict[str, list[str]] = {}
        """What was acknowledged, by topic."""

    async def goes_on(self) -> None:
        """Wait until there was another call of each kind but the first."""
        before = self.calls.copy()
        await eventually(lambda: len(self.calls - before) >= len(KINDS) - 1, 120)

    def run(self, kind: str, call: Callable[[], Any]) -> Any:
        self.calls[kind] += 1
        try:
            return call()
        except Exception as error:
            self.failures.append(f"{kind}: {error!r}")

    async def done(self, kind: str, call: Awaitable[Any]) -> Any:
        self.calls[kind] += 1
        try:
            return await call
        except Exception as error:
            self.failures.append(f"{kind}: {error!r}")


def produce(load: Load) -> None:
    """librdkafka with its default settings, idempotent, each record awaited now and then."""
    producer = Producer(
        {"bootstrap.servers": load.bootstrap, "enable.idempotence": True, "log_level": 0}
    )
    written = load.written.setdefault("confluent", [])

    def delivered(error: object, message: Message) -> None:
        load.calls["confluent produce"] += 1
        if error is not None:
            load.failures.append(f"confluent produce: {error}")
        else:
            written.append(message.value().decode())

    for number in itertools.count():
        if load.stopped.is_set():
            break
        producer.produce("confluent", f"c{number}", on_delivery=delivered)
        if number % 20 == 19 and producer.flush(PATIENCE_S):
            load.failures.append("confluent flush: something is left")
    producer.flush(PATIENCE_S)


def transact(load: Load) -> None:
    producer = Producer({
        "bootstrap.servers": load.bootstrap, "transactional.id": "restarts", "log_level": 0,
    })  # fmt: skip
    load.run("init transactions", lambda: producer.init_transactions(PATIENCE_S))
    written = load.written.setdefault("together", [])
    for number in itertools.count():
        if load.stopped.is_set():
            return
        pair = [f"t{number}a", f"t{number}b"]
        before = len(load.failures)
        load.run("begin transaction", producer.begin_transaction)
        for value in pair:
            load.run("send within", partial(producer.produce, "together", value))
        load.run("commit transaction", lambda: producer.commit_transaction(PATIENCE_S))
        if len(load.failures) == before:
            written += pair
        else:
            with contextlib.suppress(KafkaException):
                producer.abort_transaction(PATIENCE_S)


def consume(load: Load) -> None:
    consumer = Consumer({
        "bootstrap.servers": load.bootstrap, "group.id": "readers", "log_level": 0,
        "auto.offset.reset": "earliest", "enable.auto.commit": False,
    })  # fmt: skip
    consumer.subscribe(["confluent"])
    while not load.stopped.is_set():
        found = load.run("consume", lambda: consumer.consume(50, 0.5)) or []
        for message in found:
            if message.error() is not None:
                load.failures.append(f"consume: {message.error()}")
        if found:
            load.run("commit offsets", lambda: consumer.commit(asynchronous=False))
    consumer.close()


async def use_aiokafka(load: Load) -> None:
    producer = AIOKafkaProducer(
        bootstrap_servers=load.bootstrap, enable_idempotence=True, request_timeout_ms=30_000
    )
    consumer = AIOKafkaConsumer(
        "aiokafka", bootstrap_servers=load.bootstrap, group_id="aio", enable_auto_commit=False,
        auto_offset_reset="earliest",
    )  # fmt: skip
    await producer.start()
    await consumer.start()
    written = load.written.setdefault("aiokafka", [])
    try:
        for number in itertools.count():
            if load.stopped.is_set():
                return
            value = f"a{number}"
            if await load.done("aiokafka send", producer.send_and_wait("aiokafka", value.encode())):
                written.append(value)
            if await load.done("aiokafka getmany", consumer.getmany(timeout_ms=100)):
                await load.done("aiokafka commit", consumer.commit())
    finally:
        await producer.stop()
        await consumer.stop()


async def use_topics(load: Load) -> None:
    written = load.written.setdefault("topics", [])
    async with (
        AsyncTopic("topics", server=load.url) as topic,
        AsyncConsumer("topics", "group", server=load.url, auto_commit=False) as consumer,
    ):
        for number in itertools.count():
            if load.stopped.is_set():
                return
            if await load.done("topics produce", topic.produce(f"n{number}")):
                written.append(f"n{number}")
            found = await load.done("topics read", anext(consumer))
            if found is not None:
                await load.done("topics commit", consumer.commit(found))


def use_celery(load: Load, app: Celery) -> None:
    double = app.tasks["double"]
    for number in itertools.count():
        if load.stopped.is_set():
            return
        found: AsyncResult[int] | None = load.run("delay", partial(double.delay, number))
        if found is not None:
            value = load.run("result", partial(found.get, timeout=PATIENCE_S))
            if value != 2 * number:
                load.failures.append(f"result of {number}: {value}")


def celery(url: str) -> Celery:
    app = Celery("restarts", broker=url, backend=url)
    app.conf.task_acks_late = True
    app.conf.worker_hijack_root_logger = False

    @app.task(name="double")  # type: ignore[untyped-decorator]
    def double(number: int) -> int:
        return 2 * number

    return app


async def values_of(client: nexo.AsyncClient, name: str) -> Counter[str]:
    found: Counter[str] = Counter()
    offset = 0
    while records := await client.stream(name).read(0, offset):
        found.update(r.value.decode() if isinstance(r.value, bytes) else r.value for r in records)
        offset = records[-1].offset + 1
    return found


@pytest.mark.slow
@pytest.mark.timeout(1_800 if SOAK else 300)
async def test_a_planned_restart_fails_no_call_of_other_clients(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    process = Process(tmp_path / "nexo")
    process.start()
    load, app = Load(process), celery(process.url)
    async with nexo.AsyncClient(process.url) as client:
        for name in ("confluent", "together", "aiokafka", "topics"):
            await client.stream(name).create()
    works = (produce, transact, consume, partial(use_celery, app=app))
    threads = [threading.Thread(target=work, args=(load,)) for work in works]
    try:
        with start_worker(app, pool="threads", concurrency=2, perform_ping_check=False):
            for thread in threads:
                thread.start()
            tasks = [asyncio.create_task(use(load)) for use in (use_aiokafka, use_topics)]
            await eventually(lambda: len(load.calls) == len(KINDS), 120)
            for _ in range(RESTARTS):
                assert await asyncio.to_thread(process.terminate) == 0
                await asyncio.to_thread(process.start)
                await load.goes_on()
            load.stopped.set()
            await asyncio.gather(*tasks)
            for thread in threads:
                await asyncio.to_thread(thread.join)
        with capsys.disabled():
            sys.stdout.write(
                f"\n{RESTARTS} restarts under {load.calls.total():,} calls of {len(load.calls)} "
                f"kinds: {len(load.failures)} failed\n"
            )
        assert load.failures == []
        async with nexo.AsyncClient(process.url) as client:
            for name, written in load.written.items():
                there = await values_of(client, name)
                assert {value: there[value] for value in written if there[value] != 1} == {}
    finally:
        load.stopped.set()
        process.close()
