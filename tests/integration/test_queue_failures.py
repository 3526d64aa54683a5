"""What goes wrong in one call or one handler stays there (SPEC A6, D2, D3, D4, D5)."""

from __future__ import annotations

import asyncio
import gc
import logging
import subprocess
import sys
import weakref
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import nexo
from nexo import testing
from nexo.client._async.link.link import Link
from nexo.client._async.queue.jobs import Job
from nexo.client._async.queue.queue import Queue
from nexo.client._sync.queue.jobs import Job as SyncJob
from nexo.errors import (
    ConnectionLost,
    InvalidInput,
    LeaseLost,
    NotFound,
    PayloadTooLarge,
    QueueFull,
)
from nexo.model import Broker
from nexo.model.queue import QueueInfo
from tests.timing import eventually, wait_until

WAIT_S = 30.0
TOO_LARGE = bytes(11 * 1024 * 1024)
"""More than a server takes by default."""


async def settled(queue: Queue[Any]) -> tuple[int, int, int]:
    """Finished, failed and dead, once no job is at work."""

    async def at_rest() -> QueueInfo | None:
        info = await queue.info()
        return None if info.working or info.waiting or info.scheduled else info

    info = await eventually(at_rest)
    return info.finished_total, info.failed_total, info.died_total


@pytest.fixture
async def jobs(aclient: nexo.AsyncClient) -> Queue[Any]:
    return await aclient.queue("jobs").create()


# -- pushes of one turn ------------------------------------------------------


@pytest.mark.parametrize(
    "bad",
    [
        {"key": 5}, {"key": "\udcff"}, {"dedup_key": 5}, {"dedup_key": "\udcff"},
        {"priority": 2**70}, {"priority": 1.5}, {"priority": 256}, {"priority": "1"},
        {"delay": float("nan")}, {"delay": -1}, {"ttl": float("inf")}, {"ttl": object()},
    ],
)  # fmt: skip
async def test_a_bad_push_is_refused_at_the_call_and_disturbs_nobody(
    jobs: Queue[Any], bad: dict[str, Any]
) -> None:
    """SPEC A6, D2: a typed error, and the good pushes of the same turn are stored."""
    before = asyncio.ensure_future(jobs.push("before"))
    with pytest.raises(InvalidInput):
        jobs.push("bad", **bad)
    after = asyncio.ensure_future(jobs.push("after"))
    async with asyncio.timeout(WAIT_S):
        await asyncio.gather(before, after)
    assert [job.value for job in await jobs.peek()] == ["before", "after"]


async def test_a_job_that_is_too_large_fails_alone(jobs: Queue[Any]) -> None:
    """SPEC D2, E7."""
    await jobs.info()
    for _ in range(2):
        pushes = [jobs.push(1), jobs.push(TOO_LARGE), jobs.push(3)]
        first, large, last = await asyncio.gather(*pushes, return_exceptions=True)
        assert isinstance(large, PayloadTooLarge)
        assert isinstance(first, str)
        assert isinstance(last, str)


async def test_the_first_pushes_of_a_client_fail_alone_too(nexo_url: str, jobs: Queue[Any]) -> None:
    """SPEC E7: before the server has told how much it takes."""
    async with nexo.AsyncClient(nexo_url) as other:
        queue = other.queue("jobs")
        pushes = [queue.push(1), queue.push(TOO_LARGE), queue.push(3)]
        results = await asyncio.gather(*pushes, return_exceptions=True)
    assert [type(result) for result in results] == [str, PayloadTooLarge, str]
    assert [job.value for job in await jobs.peek()] == [1, 3]


async def test_many_small_pushes_fit_a_server_that_takes_little() -> None:
    """SPEC A8: MAX_PAYLOAD_SIZE bounds a request, not what one turn pushes."""
    with testing.server(max_payload_bytes=64 * 1024) as url:
        async with nexo.AsyncClient(url) as client:
            queue = await client.queue("jobs").create()
            pushes = [queue.push(bytes(10_000), key="k" * 100) for _ in range(50)]
            assert len({*await asyncio.gather(*pushes)}) == 50
            assert len({*await asyncio.gather(*(client.pubsub.publish("a", bytes(10_000))
                                                for _ in range(50)))}) == 1  # fmt: skip


async def test_pushes_of_one_turn_fill_a_queue_to_its_limit(aclient: nexo.AsyncClient) -> None:
    """SPEC D2: as if they had come one after another."""
    queue = await aclient.queue("small").create(max_jobs=2)
    results = await asyncio.gather(*(queue.push(at) for at in range(3)), return_exceptions=True)
    assert sorted(isinstance(result, QueueFull) for result in results) == [False, False, True]
    with pytest.raises(InvalidInput, match="never fit"):
        await queue.push_many(range(3))


async def test_a_full_queue_is_not_asked_about_each_job(
    aclient: nexo.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SPEC D2, I7: what fits is stored, in order, and the rest is refused together."""
    queue = await aclient.queue("small").create(max_jobs=300)
    asked, send = 0, Link.send

    def counted(link: Link, *parts: Any, **options: Any) -> Any:
        nonlocal asked
        asked += 1
        return send(link, *parts, **options)

    monkeypatch.setattr(Link, "send", counted)
    results = await asyncio.gather(*(queue.push(at) for at in range(1_000)), return_exceptions=True)
    assert [isinstance(result, QueueFull) for result in results] == [False] * 300 + [True] * 700
    assert asked < 30
    assert [job.value for job in await queue.peek(300)] == list(range(300))


async def test_a_client_that_is_gone_leaves_nothing_behind(nexo_url: str, jobs: Queue[Any]) -> None:
    """SPEC K1: programs may open and close any number of them."""
    async with nexo.AsyncClient(nexo_url) as other:
        await other.queue("jobs").push(1)
    link = weakref.ref(other.link(Broker.QUEUE))
    del other
    gc.collect()
    assert link() is None


# -- handlers ----------------------------------------------------------------


async def test_one_job_takes_one_place_of_many(jobs: Queue[Any]) -> None:
    """SPEC D3: what is free costs nothing."""
    tasks: list[int] = []

    def handle(job: Job[Any]) -> None:
        tasks.append(sum(task.get_name() == "nexo-worker" for task in asyncio.all_tasks()))

    async with await jobs.subscribe(handle, concurrency=100):
        await jobs.push(1)
        await settled(jobs)
    assert tasks == [1]


@pytest.mark.parametrize("concurrency", [1, 3])
async def test_a_handler_may_stop_its_own_consumer(jobs: Queue[Any], concurrency: int) -> None:
    """SPEC D3: it does not wait for itself, and what has not started goes back."""
    seen: list[Any] = []

    async def handle(job: Job[Any]) -> None:
        await consumer.close()
        seen.append(job.value)

    await jobs.push_many(range(10))
    consumer = await jobs.subscribe(handle, concurrency=concurrency)
    assert await consumer.wait(WAIT_S)
    assert seen
    info = await jobs.info()
    assert (info.working, info.waiting) == (0, 10 - len(seen))


@pytest.mark.parametrize("result", [object(), float("nan"), TOO_LARGE])
@pytest.mark.parametrize("keeps", [True, False])
async def test_a_result_that_cannot_be_kept_is_a_failure_only_if_it_is_wanted(
    aclient: nexo.AsyncClient, result: object, keeps: bool
) -> None:
    """SPEC D3, D9: the job is settled either way."""
    queue = await aclient.queue("r").create(max_retries=0, result_ttl=60 if keeps else 0)
    await queue.push(1)
    async with await queue.subscribe(lambda job: result):
        assert await settled(queue) == ((0, 0, 1) if keeps else (1, 0, 0))
    if keeps:
        (letter,) = await queue.dlq.peek()
        assert letter.reason.startswith(("InvalidInput: ", "PayloadTooLarge: "))


async def cancelled_inside(job: Job[Any]) -> None:
    task = asyncio.ensure_future(asyncio.sleep(10))
    task.cancel()
    await task


async def test_a_cancelled_task_within_a_handler_is_its_failure(aclient: nexo.AsyncClient) -> None:
    """SPEC D3, D5: the job is retried and the subscription goes on."""
    queue = await aclient.queue("c").create(max_retries=1)
    await queue.push_many(range(3))
    async with await queue.subscribe(cancelled_inside, concurrency=1) as consumer:
        assert await settled(queue) == (0, 3, 3)
        assert consumer.running
    assert {letter.reason for letter in await queue.dlq.peek()} == {"CancelledError"}


def test_a_handler_that_exits_fails_and_the_others_go_on(client: nexo.Client) -> None:
    """SPEC D3: SystemExit in a worker's thread ends nothing but the job's attempt."""
    queue = client.queue("x").create(max_retries=0)
    queue.push_many(range(3))

    def leave(job: SyncJob[Any]) -> None:
        sys.exit(1)

    with queue.subscribe(leave, concurrency=1) as consumer:
        wait_until(lambda: queue.info().dead == 3)
        assert consumer.running
    assert {letter.reason for letter in queue.dlq.peek()} == {"SystemExit: 1"}


class Silent(Exception):
    def __str__(self) -> str:
        raise ZeroDivisionError


@pytest.mark.parametrize(
    ("error", "kept"),
    [
        (FileNotFoundError("bad\udcff"), "FileNotFoundError: bad\\udcff"),
        (ValueError("x" * 11_000_000), "ValueError: xxx"),
        (Silent(), "Silent"),
    ],
)
@pytest.mark.usefixtures("unlogged")
async def test_any_error_can_be_the_reason_of_a_dead_letter(
    aclient: nexo.AsyncClient, error: Exception, kept: str
) -> None:
    """SPEC D5."""
    queue = await aclient.queue("e").create(max_retries=0)
    await queue.push(1)

    def fail(job: Job[Any]) -> None:
        raise error

    async with await queue.subscribe(fail):
        assert await settled(queue) == (0, 0, 1)
    (letter,) = await queue.dlq.peek()
    assert letter.cause == "nack"
    assert letter.reason.startswith(kept)


async def test_a_handlers_failure_is_logged_with_its_place(
    aclient: nexo.AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    """SPEC D5: who runs a worker sees where it failed, and when a job dies of it."""
    queue = await aclient.queue("l").create(max_retries=1)
    await queue.push(1)

    def boom(job: Job[Any]) -> Any:
        return dict[str, Any]()["missing"]

    with caplog.at_level(logging.ERROR, "nexo.client"):
        async with await queue.subscribe(boom):
            assert await settled(queue) == (0, 1, 1)
    first, last = caplog.records
    assert first.exc_info is not None
    assert isinstance(first.exc_info[1], KeyError)
    assert "attempt 1" in first.getMessage()
    assert "attempt 2" in last.getMessage()
    assert "dead letter" in last.getMessage()
    assert "dead letter" not in first.getMessage()


HANDLERS = """
def plain(job):
    return {}["missing"]

async def coroutine(job):
    return {}["missing"]
"""


@pytest.mark.parametrize("handler", ["plain", "coroutine"])
def test_a_worker_whose_queue_is_gone_ends_with_the_reason(
    client: nexo.Client, url: str, tmp_path: Path, handler: str
) -> None:
    """SPEC D3, K5: nexo worker tells what it does and what fails, and ends with 1."""
    queue = client.queue("work").create(max_retries=0)
    queue.push(1)
    (tmp_path / "handlers.py").write_text(HANDLERS)
    command = [sys.executable, "-m", "nexo", "worker", f"handlers:{handler}", "--queue", "work"]
    with subprocess.Popen(
        [*command, "--url", url], cwd=tmp_path, stderr=subprocess.PIPE, text=True
    ) as worker:
        try:
            assert worker.stderr is not None
            lines = iter(worker.stderr.readline, "")
            assert f"queue 'work' of {url}" in next(lines)
            failed = next(lines)
            assert "attempt 1" in failed
            assert "dead letter" in failed
            assert any("KeyError: 'missing'" in line for line in lines)
            queue.delete()
            rest = "".join(lines)
            assert "queue 'work' not found" in rest
            assert "Traceback" not in rest
            assert worker.wait(WAIT_S) == 1
        finally:
            worker.kill()


def test_a_consumer_says_how_it_ended(client: nexo.Client) -> None:
    """SPEC D3."""
    queue = client.queue("work").create()
    consumer = queue.subscribe(print)
    assert not consumer.wait(0)
    queue.delete()
    with pytest.raises(NotFound):
        consumer.wait(WAIT_S)
    assert isinstance(consumer.failure, NotFound)


async def test_a_waiting_pop_hears_that_its_queue_was_deleted(
    aclient: nexo.AsyncClient, jobs: Queue[Any]
) -> None:
    """SPEC D1: neither it nor who waits for a job's end is told that there is nothing."""
    job_id = await jobs.push(1, delay=60)
    waiting = [
        asyncio.ensure_future(jobs.pop(wait=60)), asyncio.ensure_future(jobs.job(job_id, wait=60))
    ]  # fmt: skip
    await aclient.ping(nexo.Broker.QUEUE)
    await jobs.delete()
    for error in await asyncio.gather(*waiting, return_exceptions=True):
        assert isinstance(error, NotFound)


# -- settling ----------------------------------------------------------------


async def test_a_settlement_that_failed_can_be_repeated(jobs: Queue[Any]) -> None:
    """SPEC D5: a job is settled once the server has said so."""
    await jobs.push(1)
    (job,) = await jobs.pop()
    with pytest.raises(InvalidInput):
        await job.nack("later", delay=-1)
    with pytest.raises(PayloadTooLarge):
        job.result(TOO_LARGE)
    await job.nack("later", delay=60)
    with pytest.raises(LeaseLost):
        await job.ack()
    assert (await jobs.info()).scheduled == 1


async def test_a_batch_that_could_not_be_settled_can_be_again(
    nexo_server: testing.Server, nexo_url: str
) -> None:
    """SPEC D5: the jobs are free for another settlement after an error."""
    async with nexo.AsyncClient(nexo_url, while_down="fail") as client:
        jobs = await client.queue("jobs").create()
        await jobs.push_many(range(4))
        batch = await jobs.pop(4)
        nexo_server.crash()
        with pytest.raises(ConnectionLost):
            await batch.ack()
        for job in batch:
            with pytest.raises(ConnectionLost):
                await job.ack()
        with pytest.raises(ConnectionLost):
            await batch.nack("down")
        assert batch.unsettled == 4
        nexo_server.start()


async def test_acks_with_large_results_do_not_fail_together(aclient: nexo.AsyncClient) -> None:
    """SPEC D9: each fits a request, all of one turn do not."""
    queue = await aclient.queue("r").create(result_ttl=60)
    await queue.push_many(range(4))
    batch = await queue.pop(4)
    for job in batch:
        job.result(bytes(4 * 1024 * 1024))
    assert await asyncio.gather(*(job.ack() for job in batch)) == [True] * 4


@pytest.mark.parametrize(
    "call",
    [
        lambda queue: queue.subscribe(None),
        lambda queue: queue.subscribe(print, batch=0),
        lambda queue: queue.subscribe(print, batch=-1),
        lambda queue: queue.subscribe(print, batch=10**6),
        lambda queue: queue.subscribe(print, batch="a"),
        lambda queue: queue.subscribe(print, wait=-1),
        lambda queue: queue.subscribe(print, wait=float("nan")),
        lambda queue: queue.subscribe(print, lease=-1),
        lambda queue: queue.subscribe(print, lease=0),
        lambda queue: queue.subscribe(print, concurrency=0),
        lambda queue: queue.subscribe(print, concurrency="a"),
        lambda queue: queue.pop(lease=0),
        lambda queue: queue.pop(2**70),
        lambda queue: queue.pop(wait=float("inf")),
        lambda queue: queue.peek(2**70),
        lambda queue: queue.push_many(5),
        lambda queue: queue.push_many([1, 2], keys="ab"),
        lambda queue: queue.push_many([1, 2], keys=["a", 5]),
        lambda queue: queue.push_many([1, 2], dedup_keys=["a", "\udcff"]),
        lambda queue: queue.update(visibility_timeout=float("nan")),
        lambda queue: queue.update(max_retries=2**70),
        lambda queue: queue.job(5),
        lambda queue: queue.cron.set("n", "* * * * *", 1, priority=2**70),
    ],
)
async def test_bad_arguments_are_refused_before_anything_starts(
    jobs: Queue[Any], call: Any
) -> None:
    """SPEC D3: a typed error, and the jobs stay as they are."""
    await jobs.push(1)
    with pytest.raises(InvalidInput):
        await call(jobs)
    assert (await jobs.info()).waiting == 1


@pytest.mark.parametrize("name", [None, 5, b"x"])
def test_a_queue_has_a_name_of_text(client: nexo.Client, name: Any) -> None:
    """SPEC A11."""
    with pytest.raises(InvalidInput):
        client.queue(name)


async def test_nothing_to_push_to_a_missing_queue_is_not_found(aclient: nexo.AsyncClient) -> None:
    """SPEC D2."""
    with pytest.raises(NotFound):
        await aclient.queue("nowhere").push_many([])


async def test_a_lease_is_not_extended_by_nothing(jobs: Queue[Any]) -> None:
    """SPEC D4."""
    await jobs.push(1)
    (job,) = await jobs.pop()
    with pytest.raises(InvalidInput, match="extend must be more than 0"):
        await job.extend(0)


# -- options -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"visibility_timeout": 0}, "visibility_timeout = 0: must be a duration .* from 1ms"),
        ({"rate": -1}, "rate = -1: must be a number from 0"),
        ({"persistence": "x"}, "persistence = 'x': must be one of file_async, file_sync"),
        ({"max_retries": -3}, "max_retries = -3: must be a whole number from 0"),
    ],
)
async def test_refused_options_have_the_names_the_caller_used(
    aclient: nexo.AsyncClient, options: dict[str, Any], said: str
) -> None:
    """SPEC D1."""
    with pytest.raises(InvalidInput, match=said):
        await aclient.queue("o").create(**options)
    assert not await aclient.queue("o").exists()


async def test_a_create_that_differs_says_in_what(aclient: nexo.AsyncClient) -> None:
    """SPEC D1."""
    await aclient.queue("o").create(max_retries=3)
    with pytest.raises(nexo.errors.AlreadyExists, match="max_retries = 3, not 4") as refused:
        await aclient.queue("o").create(max_retries=4, visibility_timeout=7)
    assert "visibility_timeout_ms = 30000, not 7000" in str(refused.value)


@dataclass
class Mail:
    to: str


async def test_one_odd_job_does_not_hide_the_others(aclient: nexo.AsyncClient) -> None:
    """SPEC D6, K1: values are checked when they are looked at."""
    mails = await aclient.queue("m", Mail).create(max_retries=0)
    await mails.push(Mail("a@b"))
    await aclient.queue("m").push({"bad": 1})
    await aclient.queue("m").push({"bad": 1}, delay=60)
    for page in (await mails.peek(), await mails.scheduled.list()):
        with pytest.raises(InvalidInput, match="Mail"):
            _ = page[-1].value
    async with await mails.subscribe(lambda job: job.value):
        await eventually(mails.dlq.count)
    (letter,) = await mails.dlq.peek()
    assert letter.cause == "nack"
    with pytest.raises(InvalidInput, match="Mail"):
        _ = letter.value


async def test_push_many_refuses_what_is_too_large_before_it_stores_anything(
    nexo_url: str, jobs: Queue[Any]
) -> None:
    """SPEC D2, E7: bad input changes nothing, however many requests it would take."""
    chunk = bytes(3 * 1024 * 1024)
    async with nexo.AsyncClient(nexo_url) as other:
        for _ in range(2):
            with pytest.raises(PayloadTooLarge):
                await other.queue("jobs").push_many([chunk, chunk, TOO_LARGE])
    assert (await jobs.info()).pushed_total == 0


def test_push_many_fits_a_server_that_takes_little() -> None:
    """SPEC A8: MAX_PAYLOAD_SIZE bounds a request, not a call."""
    with testing.server(max_payload_bytes=64 * 1024) as url, nexo.connect(url) as client:
        queue = client.queue("jobs").create()
        assert len(queue.push_many([bytes(10_000)] * 20, keys=["k" * 1_000] * 20)) == 20
        assert client.pubsub.publish_many("a", [bytes(10_000)] * 20) == [0] * 20
