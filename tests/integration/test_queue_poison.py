"""Jobs that kill or hang their workers (SPEC D5; findings F9, U9), headers, first use (SPEC O6)."""

from __future__ import annotations

import subprocess
import sys
import threading
from typing import Any

import pytest

import nexo
from nexo import testing
from tests.timing import wait_until

ASYNC_WORKER = """
import asyncio, os, sys, nexo

async def handle(job):
    if job.value == "poison":
        os._exit(9)

async def main():
    async with nexo.AsyncClient(sys.argv[1]) as client:
        consumer = await client.queue("q").subscribe(handle, batch=10, concurrency=1)
        await consumer.wait()

asyncio.run(main())
"""
SYNC_WORKER = """
import os, sys, nexo

def handle(job):
    if job.value == "poison":
        os._exit(9)

with nexo.connect(sys.argv[1]) as client:
    client.queue("q").subscribe(handle, batch=10, concurrency=1).wait()
"""


@pytest.mark.parametrize("worker", [ASYNC_WORKER, SYNC_WORKER], ids=["async", "sync"])
def test_a_job_that_kills_its_workers_is_a_dead_letter_and_the_others_run(
    worker: str, client: nexo.Client, url: str
) -> None:
    """F9: it was delivered for ever, 15 times with two retries."""
    queue: Any = client.queue("q").create(max_retries=1)
    queue.push_many(["poison", *range(8)])
    for _ in range(2):
        command = [sys.executable, "-c", worker, url]
        assert subprocess.run(command, timeout=30, check=False).returncode == 9
    wait_until(lambda: queue.dlq.count() == 1)
    (letter,) = queue.dlq.peek()
    assert (letter.value, letter.cause, letter.attempts) == ("poison", "lost", 2)
    left = subprocess.Popen([sys.executable, "-c", worker, url])
    try:
        wait_until(lambda: queue.info().finished_total == 8)
    finally:
        left.kill()
        left.wait()
    assert queue.info().died_total == 1


def test_a_hung_handler_loses_its_job_at_the_time_limit(client: nexo.Client) -> None:
    """U9: it kept its lease for ever."""
    queue: Any = client.queue("q").create(time_limit="300ms", visibility_timeout="100ms")
    queue.push("slow")
    release, runs = threading.Event(), []

    def handle(job: Any) -> None:
        runs.append(job.attempt)
        if job.attempt == 1:
            release.wait(20)

    with queue.subscribe(handle, concurrency=2):
        wait_until(lambda: queue.info().finished_total == 1)
        release.set()
    assert runs == [1, 2]


def test_headers_come_with_the_job(client: nexo.Client) -> None:
    """U12."""
    queue: Any = client.queue("q").create()
    queue.push("a", headers={"traceparent": "00-1", "n": 1})
    queue.push_many(["b", "c"], headers=[None, {"x": "ü"}])
    assert [view.headers for view in queue.peek()] == [
        {"traceparent": "00-1", "n": 1}, {}, {"x": "ü"},
    ]  # fmt: skip
    assert [job.headers.get("x") for job in queue.pop(3)] == [None, None, "ü"]


def test_a_worker_may_come_before_its_queue_where_first_users_make_queues() -> None:
    """U8."""
    with testing.server(auto_create_queues=True) as url, nexo.connect(url) as client:
        done: list[str] = []
        with client.queue("fresh").subscribe(lambda job: done.append(job.value)):
            client.queue("fresh").push("a")
            wait_until(lambda: done == ["a"])


def test_what_a_queue_shows_of_its_options_makes_another(client: nexo.Client) -> None:
    """U8."""
    first = client.queue("a").create(visibility_timeout="5s", rate=2.5, result_ttl=60)
    shown = first.info().options
    assert client.queue("b").create(**shown).info().options == shown


def test_a_schedule_has_a_time_zone(client: nexo.Client) -> None:
    """SPEC O6."""
    queue: Any = client.queue("q").create()
    rome = queue.cron.set("r", "0 9 * * *", "x", timezone="Europe/Rome")
    tokyo = queue.cron.set("t", "0 9 * * *", "x", timezone="Asia/Tokyo")
    assert rome % 86_400_000 in (7 * 3_600_000, 8 * 3_600_000)
    assert tokyo % 86_400_000 == 0
    assert {row.zone for row in queue.cron.list()} == {"Europe/Rome", "Asia/Tokyo"}
