"""Queues over TCP, with the real server and the async client (SPEC D)."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pytest

import nexo
from nexo.client._async.queue.jobs import Job
from nexo.client._async.queue.queue import Queue
from nexo.errors import (
    AlreadyExists,
    Conflict,
    InvalidInput,
    InvalidName,
    InvalidOption,
    LeaseLost,
    NotFound,
    RequestTimeout,
)
from nexo.model import Broker
from nexo.protocol.ops import Op
from nexo.protocol.queue import PopJobs, encode
from nexo.testing import Server
from tests.integration.classic import Classic
from tests.timing import eventually

WAIT_S = 10.0
Client = nexo.AsyncClient


@pytest.fixture
async def jobs(aclient: Client) -> Queue[Any]:
    return await aclient.queue("jobs").create()


async def test_the_documents_example(aclient: Client) -> None:
    mails = await aclient.queue("emails").create()
    await mails.push({"to": "test@test.com"})
    sent: list[Any] = []
    consumer = await mails.subscribe(lambda job: sent.append(job.value))
    await eventually(lambda: sent == [{"to": "test@test.com"}])
    await consumer.close()
    chunk = bytes(1024 * 1024)
    videos = await aclient.queue("video-processing").create()
    await videos.push(chunk)
    assert (await videos.pop())[0].value == chunk


async def test_closing_the_client_stops_its_consumers(nexo_url: str, jobs: Queue[Any]) -> None:
    async with nexo.AsyncClient(nexo_url) as other:
        consumer = await other.queue("jobs").subscribe(lambda job: None)
    assert not consumer.running
    assert await jobs.push("left") == (await jobs.peek())[0].id


# -- values and order --------------------------------------------------------


async def test_every_kind_of_value_round_trips(jobs: Queue[Any]) -> None:  # SPEC A4
    values = [b"", b"\x00raw", "", "tëxt 🎈", None, 0, 1.5, [1, {"a": None}], {"k": "v"}, True]
    for value in values:
        await jobs.push(value)
    assert (await jobs.pop(100)).values() == values


@dataclass
class Mail:
    to: str
    tries: int = 0


async def test_typed_queues_give_typed_values(aclient: Client) -> None:  # SPEC K1
    mails = await aclient.queue("mails", Mail).create()
    await mails.push(Mail("a@b.c"))
    await aclient.queue("mails").push({"to": 7})
    good, bad = await mails.pop(2)
    assert good.value == Mail("a@b.c")
    with pytest.raises(InvalidInput, match="Mail"):
        _ = bad.value


async def test_single_pushes_of_one_turn_keep_their_order(jobs: Queue[Any]) -> None:
    ids = await asyncio.gather(*(jobs.push(n, priority=n % 2) for n in range(50)))
    assert len(set(ids)) == 50
    assert (await jobs.pop(50)).values() == [*range(1, 50, 2), *range(0, 50, 2)]


async def test_push_many_returns_the_ids_in_order(jobs: Queue[Any]) -> None:  # SPEC D2
    ids = await jobs.push_many(range(300))
    assert [job.id for job in await jobs.pop(300)] == list(ids)
    assert (ids[-1], ids[1:3]) == (ids[299], [ids[1], ids[2]])


async def test_more_than_a_frame_can_hold_is_pushed_in_parts(jobs: Queue[Any]) -> None:
    value = b"x" * 1_000_000
    assert len(await jobs.push_many([value] * 12)) == 12
    assert sum(len(job.value) for job in await jobs.pop(3)) == 3_000_000


async def test_a_job_as_large_as_a_frame_allows_round_trips(jobs: Queue[Any]) -> None:  # SPEC E7
    await jobs.push(b"x" * 5_000_000)
    assert len((await jobs.pop())[0].value) == 5_000_000


async def test_a_delayed_job_arrives_on_time(jobs: Queue[Any]) -> None:  # SPEC D2
    start = time.monotonic()
    await jobs.push("later", delay=0.2)
    assert not await jobs.pop()
    assert (await jobs.pop(wait=20)).values() == ["later"]
    assert 0.15 <= time.monotonic() - start < 5


async def test_scheduled_jobs_are_listed_and_cancelled(jobs: Queue[Any]) -> None:  # SPEC D2
    later = await jobs.push("later", delay="1h")
    soon = await jobs.push("soon", delay="5m", priority=9, key="k")
    listed = await jobs.scheduled.list()
    assert [(job.id, job.value, job.priority) for job in listed] == [
        (soon, "soon", 9), (later, "later", 0),
    ]  # fmt: skip
    assert await jobs.scheduled.cancel(later)
    assert not await jobs.scheduled.cancel(later)
    assert (await jobs.info()).scheduled == 1


async def test_dedup_returns_the_id_of_the_job_that_is_there(jobs: Queue[Any]) -> None:
    first = await jobs.push("a", dedup_key="k")
    assert await jobs.push("b", dedup_key="k") == first
    second = await jobs.push("c", dedup_key="k", replace=True)
    assert second != first
    assert (await jobs.pop(5)).values() == ["c"]


async def test_a_replaced_job_says_by_which(jobs: Queue[Any], nexo_server: Server) -> None:
    """SPEC D2, D9: who waits for it hears so, and so does who asks after a restart."""
    first = await jobs.push("a", dedup_key="k", delay=60)
    waiting = asyncio.create_task(jobs.result(first, wait=30))
    await asyncio.sleep(0)
    second, third = await jobs.push_many(["b", "c"], dedup_keys=["k", "k"], replace=True)
    assert second == third
    with pytest.raises(Conflict, match=f"was replaced by job {third}"):
        await waiting
    for restart in (nexo_server.crash, nexo_server.stop, None):
        state = await jobs.job(first)
        assert (state.state, state.replaced_by, state.ended) == ("replaced", third, True)
        assert (await jobs.job(third)).replaced_by is None
        if restart is not None:
            await asyncio.to_thread(restart)
            await asyncio.to_thread(nexo_server.start)
            await jobs.info()


# -- popping and settling ----------------------------------------------------


async def test_no_request_overtakes_a_push_that_was_not_awaited_yet(jobs: Queue[Any]) -> None:
    """SPEC A3, D1."""
    pushed = jobs.push("first")
    assert (await jobs.info()).waiting == 1
    assert [job.id for job in await jobs.peek(1)] == [await pushed]
    second = jobs.push("second")
    assert await jobs.delete()
    assert not await jobs.exists()
    with suppress(NotFound):  # the queue went before the job was safe on disk
        await second


async def test_a_push_wakes_a_waiting_pop_at_once(jobs: Queue[Any]) -> None:  # SPEC D3
    pop = asyncio.create_task(jobs.pop(wait=30))
    await asyncio.sleep(0.05)
    start = time.monotonic()
    await jobs.push("now")
    assert (await pop).values() == ["now"]
    assert time.monotonic() - start < 15


async def test_a_cancelled_pop_takes_no_job(jobs: Queue[Any]) -> None:  # SPEC A6
    pop = asyncio.create_task(jobs.pop(wait=30))
    await asyncio.sleep(0.05)
    pop.cancel()
    await asyncio.gather(pop, return_exceptions=True)
    await jobs.push("kept")
    assert (await jobs.pop(wait=1)).values() == ["kept"]


async def test_jobs_that_arrive_at_a_cancelled_pop_go_back(
    aclient: Client, jobs: Queue[Any]
) -> None:  # SPEC A6
    await jobs.push("late")
    reply = await aclient.link(Broker.QUEUE).call(Op.Q_POP, encode(PopJobs("jobs")))
    assert not await jobs.pop()
    jobs._give_back(reply)
    assert [(job.value, job.attempt) for job in await jobs.pop()] == [("late", 1)]


async def test_acked_jobs_are_gone_and_nacked_ones_come_back(jobs: Queue[Any]) -> None:
    await jobs.push_many("abc")
    a, b, c = await jobs.pop(3)
    await a.ack()
    await b.nack("no luck")
    await c.release()
    again = await jobs.pop(3)
    assert [(job.value, job.attempt) for job in again] == [("b", 2), ("c", 1)]
    await again.ack()
    info = await jobs.info()
    assert (info.waiting, info.working, info.finished_total) == (0, 0, 3)


async def test_a_job_is_settled_once(jobs: Queue[Any]) -> None:
    await jobs.push("a")
    (job,) = await jobs.pop()
    await job.ack()
    with pytest.raises(LeaseLost):
        await job.nack("late")


async def test_the_ack_of_an_expired_lease_is_refused(jobs: Queue[Any]) -> None:  # SPEC D4
    await jobs.push("a")
    (late,) = await jobs.pop(lease=0.05)
    (now,) = await jobs.pop(wait=5)
    with pytest.raises(LeaseLost):
        await late.ack()
    with pytest.raises(LeaseLost):
        await late.extend()
    await now.ack()
    assert now.attempt == 2


async def test_an_extended_lease_lasts_longer(jobs: Queue[Any]) -> None:  # SPEC D4
    await jobs.push("a")
    (job,) = await jobs.pop(lease=1)
    await job.extend(60)
    assert not await jobs.pop(wait=1.5)
    await job.ack()


async def test_a_dead_letter_tells_its_story(aclient: Client) -> None:  # SPEC D5, D6
    queue = await aclient.queue("sick").create(max_retries=1)
    for value in ("one", "two"):
        await queue.push(value)
    for attempt in (1, 2):
        for job in await queue.pop(2):
            await job.nack(f"failure {attempt} of {job.value}")
    newest, oldest = await queue.dlq.peek()
    assert (newest.value, oldest.value) == ("two", "one")
    assert (oldest.cause, oldest.attempts, oldest.reason) == ("nack", 2, "failure 2 of one")
    assert [error for _, error in oldest.history] == ["failure 1 of one", "failure 2 of one"]
    assert oldest.pushed_ms <= oldest.history[0][0] <= oldest.died_ms
    assert await queue.dlq.replay(oldest.id) == 1
    assert [(job.value, job.attempt) for job in await queue.pop(5)] == [("one", 1)]
    assert await queue.dlq.delete(newest.id)
    assert not await queue.dlq.delete(newest.id)
    assert await queue.dlq.count() == 0


async def test_all_dead_letters_are_replayed_or_purged(aclient: Client) -> None:  # SPEC D6
    queue = await aclient.queue("sick").create(max_retries=0)
    await queue.push_many(range(5))
    await (await queue.pop(5)).nack("no")
    assert await queue.dlq.replay([]) == 0
    some = [letter.id for letter in await queue.dlq.peek(2)]
    assert await queue.dlq.replay(some) == 2
    assert await queue.dlq.replay() == 3
    jobs = await queue.pop(5)
    for job in jobs:
        await job.reject("never")
    assert {job.cause for job in await queue.dlq.peek(2, 1)} == {"rejected"}
    assert await queue.dlq.purge() == 5


# -- subscribe ---------------------------------------------------------------


async def test_a_handler_acks_by_returning_and_nacks_by_raising(aclient: Client) -> None:
    queue = await aclient.queue("work").create(max_retries=1)  # SPEC D3
    seen: list[tuple[Any, int]] = []

    async def handle(job: Job[Any]) -> None:
        seen.append((job.value, job.attempt))
        if job.value == "bad":
            raise ValueError("broken")

    await queue.push_many(["good", "bad"])
    async with await queue.subscribe(handle, wait=5):
        await eventually(lambda: len(seen) == 3)
    assert sorted(seen) == [("bad", 1), ("bad", 2), ("good", 1)]
    (dead,) = await queue.dlq.peek()
    assert dead.reason == "ValueError: broken"
    assert (await queue.info()).working == 0


async def test_concurrency_one_is_strictly_fifo(jobs: Queue[Any]) -> None:  # SPEC D3
    seen: list[int] = []
    running = 0

    async def handle(job: Job[Any]) -> None:
        nonlocal running
        running += 1
        assert running == 1
        await asyncio.sleep(0)
        running -= 1
        seen.append(job.value)

    await jobs.push_many(range(200))
    async with await jobs.subscribe(handle, concurrency=1, batch=7):
        await eventually(lambda: len(seen) == 200)
    assert seen == list(range(200))


async def test_no_more_handlers_run_than_asked_for(jobs: Queue[Any]) -> None:
    running, most, done = 0, 0, 0

    async def handle(_job: Job[Any]) -> None:
        nonlocal running, most, done
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.002)
        running -= 1
        done += 1

    await jobs.push_many(range(60))
    async with await jobs.subscribe(handle, concurrency=4):
        await eventually(lambda: done == 60)
    assert most == 4


async def test_an_idle_subscription_stops_at_once(jobs: Queue[Any]) -> None:  # SPEC D3
    consumer = await jobs.subscribe(print, wait=30)
    await asyncio.sleep(0.05)
    start = time.monotonic()
    await consumer.close()
    assert time.monotonic() - start < 15


async def test_stopping_returns_what_has_not_started_uncounted(aclient: Client) -> None:
    queue = await aclient.queue("work").create(max_retries=0)  # SPEC D3
    started, go_on = asyncio.Event(), asyncio.Event()

    async def handle(_job: Job[Any]) -> None:
        started.set()
        await go_on.wait()

    await queue.push_many(range(10))
    consumer = await queue.subscribe(handle, concurrency=1)
    await started.wait()
    stopping = asyncio.create_task(consumer.close())
    rest = await queue.pop(10, wait=5)
    assert [(job.value, job.attempt) for job in rest] == [(n, 1) for n in range(1, 10)]
    go_on.set()
    await stopping
    assert (await queue.info()).finished_total == 1


async def test_a_handler_of_three_lease_times_completes_once(aclient: Client) -> None:  # SPEC D4
    queue = await aclient.queue("slow").create(visibility_timeout=1)
    runs = 0

    async def handle(_job: Job[Any]) -> None:
        nonlocal runs
        runs += 1
        await asyncio.sleep(3.0)

    await queue.push("long")
    async with await queue.subscribe(handle):
        await eventually(lambda: runs > 0)
        await asyncio.sleep(3.1)
    info = await queue.info()
    assert (runs, info.finished_total, info.failed_total) == (1, 1, 0)


async def test_a_subscription_to_a_deleted_queue_ends_and_says_why(jobs: Queue[Any]) -> None:
    consumer = await jobs.subscribe(print, wait=30)
    await asyncio.sleep(0.02)
    await jobs.delete()
    await eventually(lambda: not consumer.running)
    assert isinstance(consumer.failure, NotFound)
    await consumer.close()


async def test_a_subscription_outlives_a_server_restart(
    nexo_server: nexo.testing.Server, jobs: Queue[Any]
) -> None:  # SPEC A5
    seen: list[Any] = []

    async def handle(job: Job[Any]) -> None:
        seen.append(job.value)

    async with await jobs.subscribe(handle):
        await jobs.push("before")
        await eventually(lambda: seen == ["before"])
        await asyncio.to_thread(nexo_server.stop)
        await asyncio.to_thread(nexo_server.start)
        await jobs.push("after")
        await eventually(lambda: "after" in seen)
    assert seen.count("after") == 1


# -- results, progress, schedules, limits ------------------------------------


async def test_what_a_handler_returns_is_the_result(aclient: Client) -> None:  # SPEC D9
    queue = await aclient.queue("sums").create(result_ttl=60, max_retries=0)

    async def add(job: Job[Any]) -> int:
        await job.progress({"done": 0.5})
        return sum(job.value)

    job_id = await queue.push([1, 2, 3])
    bad_id = await queue.push("not a list")
    with pytest.raises(RequestTimeout):
        await queue.result(job_id, wait=0.01)
    async with await queue.subscribe(add):
        assert await queue.result(job_id) == 6
        with pytest.raises(Conflict, match="unsupported operand"):
            await queue.result(bad_id)


async def test_progress_is_seen_while_a_job_runs(jobs: Queue[Any]) -> None:  # SPEC D9
    job_id = await jobs.push("x")
    assert (await jobs.job(job_id)).state == "waiting"
    (job,) = await jobs.pop()
    await job.progress(50)
    state = await jobs.job(job_id)
    assert (state.state, state.progress, state.ended) == ("working", 50, False)
    await job.ack()
    assert (await jobs.job(job_id)).state == "done"


async def test_a_schedule_is_kept_and_listed(jobs: Queue[Any]) -> None:  # SPEC D9
    next_ms = await jobs.cron.set("nightly", "0 3 * * *", {"report": 1}, priority=5)
    (schedule,) = await jobs.cron.list()
    assert (schedule.name, schedule.cron, schedule.next_ms) == ("nightly", "0 3 * * *", next_ms)
    assert await jobs.cron.delete("nightly")
    assert not await jobs.cron.delete("nightly")
    with pytest.raises(InvalidInput, match="minute"):
        await jobs.cron.set("odd", "99 * * * *", 1)


async def test_a_rate_limited_queue_serves_a_waiting_pop_when_it_may(aclient: Client) -> None:
    queue = await aclient.queue("slow").create(rate=20)  # SPEC D9
    await queue.push_many(range(3))
    start = time.monotonic()
    got = [job.value for _ in range(3) for job in await queue.pop(10, wait=5)]
    assert got == [0, 1, 2]
    assert time.monotonic() - start >= 0.09


async def test_a_paused_queue_wakes_its_consumers_when_resumed(jobs: Queue[Any]) -> None:
    await jobs.pause()  # SPEC D9
    await jobs.push("a")
    pop = asyncio.create_task(jobs.pop(wait=10))
    await asyncio.sleep(0.05)
    assert not pop.done()
    await jobs.resume()
    assert (await pop).values() == ["a"]


# -- the queue as a whole ----------------------------------------------------


async def test_creating_twice_must_agree_or_update(aclient: Client) -> None:  # SPEC D1
    queue = await aclient.queue("q").create(max_retries=3, visibility_timeout="10s")
    await queue.create()
    await queue.create(max_retries=3)
    with pytest.raises(AlreadyExists):
        await queue.create(max_retries=4)
    await queue.create(max_retries=4, update=True)
    info = await queue.update(backoff="fixed", backoff_delay=0.5)
    assert (info.options["max_retries"], info.options["backoff_delay_ms"]) == (4, 500)
    assert info.options["visibility_timeout_ms"] == 10_000


async def test_queues_are_listed_deleted_and_purged(aclient: Client) -> None:  # SPEC D1
    one = await aclient.queue("one").create()
    await aclient.queue("a/b:c").create()
    assert await aclient.queues() == ["a/b:c", "one"]
    assert await aclient.queues("a/") == ["a/b:c"]
    assert [info.name for info in await aclient.queue_infos("o")] == ["one"]
    await one.push_many(range(5))
    assert await one.purge() == 5
    assert await one.delete()
    assert not await one.delete()
    assert not await one.exists()
    with pytest.raises(NotFound, match=r"^queue 'one' not found: create it first$"):
        await one.push(1)


async def test_a_new_queue_of_an_old_name_has_nothing_of_it(jobs: Queue[Any]) -> None:
    old = await jobs.push("old")
    (job,) = await jobs.pop()
    await jobs.delete()
    await jobs.create()
    with pytest.raises(LeaseLost):
        await job.ack()
    with pytest.raises(NotFound):
        await jobs.job(old)
    assert (await jobs.info()).pushed_total == 0


# -- bad input ---------------------------------------------------------------


@pytest.mark.parametrize(
    "call",
    [
        lambda jobs: jobs.push(1, priority=256),
        lambda jobs: jobs.push(1, priority=-1),
        lambda jobs: jobs.push(1, delay=-1),
        lambda jobs: jobs.push(1, delay=10**9),
        lambda jobs: jobs.pop(0),
        lambda jobs: jobs.pop(10**12),
        lambda jobs: jobs.pop(wait=10**6),
        lambda jobs: jobs.job("zz"),
        lambda jobs: jobs.peek(10**9),
        lambda jobs: jobs.create(colour="red"),
        lambda jobs: jobs.update(max_retries="many"),
    ],
)
async def test_bad_input_is_refused_and_changes_nothing(jobs: Queue[Any], call: Any) -> None:
    with pytest.raises(InvalidInput):
        await call(jobs)
    info = await jobs.info()
    assert (info.pushed_total, info.options["max_retries"]) == (0, 5)
    assert InvalidOption.code == "INVALID_OPTION"


@pytest.mark.parametrize("name", ["", "/etc", "..", "a/../b", "a b", "x" * 256])
async def test_names_that_are_not_allowed_are_refused(aclient: Client, name: str) -> None:
    with pytest.raises(InvalidName):
        aclient.queue(name)


async def test_a_queue_that_never_was_is_not_found(aclient: Client) -> None:
    queue = aclient.queue("nowhere")
    for call in (queue.push(1), queue.pop(), queue.info(), queue.purge(), queue.dlq.peek(),
                 queue.subscribe(print), queue.pause(), queue.update(max_retries=1)):  # fmt: skip
        with pytest.raises(NotFound):
            await call


# -- lost consumers ----------------------------------------------------------


async def test_a_reset_connection_frees_its_jobs_at_once(
    nexo_server: nexo.testing.Server, jobs: Queue[Any]
) -> None:  # SPEC D8
    await jobs.push_many(range(100))
    other = Classic("127.0.0.1", nexo_server.port)
    assert len(await asyncio.to_thread(other.q_consume, "jobs", batchSize=100)) == 100
    waiting = asyncio.create_task(jobs.pop(100, wait=25))
    await asyncio.sleep(0.02)
    reset = struct.pack("ii", 1, 0)
    other.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset)
    start = time.monotonic()
    other.__exit__()
    batch = await waiting
    assert time.monotonic() - start < 15, "long before the lease ends"
    assert [job.value for job in batch] == list(range(100))
    assert [job.attempt for job in batch] == [2] + [1] * 99  # the first is presumed to have begun


STOPPED_WORKER = """
import sys, nexo
with nexo.Client(sys.argv[1]) as client:
    (job,) = client.queue("jobs").pop(wait=10, lease=0.3)
    print("taken", flush=True)
    sys.stdin.readline()
    try:
        job.ack()
        print("acked", flush=True)
    except nexo.NexoError as error:
        print(type(error).__name__, flush=True)
"""


async def test_a_worker_stopped_beyond_its_lease_cannot_ack(
    nexo_url: str, jobs: Queue[Any]
) -> None:  # SPEC D4
    await jobs.push_many(["mine", "other"])
    worker = await asyncio.create_subprocess_exec(
        sys.executable, "-c", STOPPED_WORKER, nexo_url,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    assert worker.stdout is not None
    assert worker.stdin is not None
    assert await worker.stdout.readline() == b"taken\n"
    os.kill(worker.pid, signal.SIGSTOP)
    again = [job for _ in range(2) for job in await jobs.pop(1, wait=5)]
    for job in again:
        await job.ack()
    os.kill(worker.pid, signal.SIGCONT)
    worker.stdin.write(b"\n")
    assert await worker.stdout.readline() == b"LeaseLost\n"
    await worker.wait()
    assert sorted((job.value, job.attempt) for job in again) == [("mine", 2), ("other", 1)]
    assert (await jobs.info()).finished_total == 2


async def test_a_pop_of_a_million_million_jobs_leaves_the_server_unmoved(
    aclient: Client, jobs: Queue[Any]
) -> None:
    link = aclient.link(Broker.QUEUE)
    for limit in (10**12, 2**63 - 1, -5):
        with pytest.raises(InvalidInput):
            await link.call(Op.Q_POP, encode(PopJobs("jobs", limit)))
    await jobs.push("still here")
    assert (await jobs.pop()).values() == ["still here"]
