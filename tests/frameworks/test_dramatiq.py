"""dramatiq on Nexo, with its own worker (SPEC M3): tested with dramatiq 2.2."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import dramatiq
import pytest
from dramatiq import Worker
from dramatiq.errors import ConnectionClosed, QueueJoinTimeout, QueueNotFound
from dramatiq.rate_limits import (
    Barrier,
    BucketRateLimiter,
    ConcurrentRateLimiter,
    RateLimitExceeded,
    WindowRateLimiter,
)
from dramatiq.results import ResultMissing, Results

import nexo
from nexo import testing
from nexo.integrations.dramatiq import DramatiqBroker, DramatiqResultBackend, NexoRateLimiterBackend
from tests.timing import wait_until


@pytest.fixture
def broker(url: str) -> Iterator[DramatiqBroker]:
    broker = DramatiqBroker(url)
    broker.add_middleware(Results(backend=DramatiqResultBackend(client=broker.client)))
    dramatiq.set_broker(broker)
    yield broker
    broker.close()


@contextmanager
def working(broker: DramatiqBroker, threads: int = 2) -> Iterator[Worker]:
    worker = Worker(broker, worker_timeout=100, worker_threads=threads)
    worker.start()
    try:
        yield worker
    finally:
        worker.stop()


def test_a_message_is_processed_and_gives_its_result(broker: DramatiqBroker) -> None:
    @dramatiq.actor(broker=broker, store_results=True)
    def add(a: int, b: int) -> int:
        return a + b

    message = add.send(2, 3)
    with pytest.raises(ResultMissing):
        message.get_result()
    with working(broker):
        assert message.get_result(block=True, timeout=20_000) == 5
        broker.join("default", timeout=20_000)


def test_an_actor_that_fails_is_tried_again(broker: DramatiqBroker) -> None:
    tries: list[float] = []

    @dramatiq.actor(broker=broker, max_retries=5, min_backoff=10, max_backoff=20)
    def flaky() -> None:
        tries.append(time.monotonic())
        if len(tries) < 3:
            raise ValueError("not yet")

    with working(broker):
        flaky.send()
        wait_until(lambda: len(tries) == 3)
        broker.join("default", timeout=20_000)


def test_a_message_that_fails_for_good_is_a_dead_letter(
    broker: DramatiqBroker, client: nexo.Client
) -> None:
    @dramatiq.actor(broker=broker, max_retries=0)
    def boom() -> None:
        raise ValueError("no luck")

    message = boom.send()
    with working(broker):
        wait_until(lambda: client.queue("default").info().dead == 1)
    (letter,) = client.queue("default").dlq.peek()
    assert (letter.cause, letter.headers) == (
        "rejected",
        {"task": "boom", "id": message.message_id},
    )


def test_delays_are_held_by_the_broker_and_priorities_kept(
    broker: DramatiqBroker, client: nexo.Client
) -> None:
    @dramatiq.actor(broker=broker)
    def note() -> None: ...

    note.send_with_options(delay=60_000)
    note.send_with_options(broker_priority=7)
    (later,) = client.queue("default").scheduled.list()
    (urgent,) = client.queue("default").peek()
    assert (later.due_ms - later.pushed_ms, urgent.priority) == (60_000, 7)
    broker.flush_all()
    broker.join("default", timeout=20_000)


def test_leases_last_and_what_is_not_begun_goes_back(url: str, client: nexo.Client) -> None:
    broker = DramatiqBroker(url, queue_options={"visibility_timeout": 0.8})
    began, go_on, ran = threading.Event(), threading.Event(), list[int]()

    @dramatiq.actor(broker=broker)
    def slow(n: int) -> None:
        ran.append(n)
        began.set()
        go_on.wait(20)

    for n in range(3):
        slow.send(n)
    with working(broker, threads=1):
        began.wait(20)
        time.sleep(1.8)  # two leases
        go_on.set()
        broker.join("default", timeout=20_000)
    assert sorted(ran) == [0, 1, 2]
    broker.close()


def test_a_consumer_that_closes_gives_back_what_it_fetched(
    broker: DramatiqBroker, client: nexo.Client
) -> None:
    @dramatiq.actor(broker=broker)
    def note() -> None: ...

    for _ in range(3):
        note.send()
    consumer = broker.consume("default", prefetch=3, timeout=1_000)
    held = next(consumer)
    assert held is not None
    consumer.close()
    assert client.queue("default").info().waiting == 2
    consumer.requeue([held])
    consumer.close()
    assert [job.attempt for job in client.queue("default").pop(5)] == [1, 1, 1]


def test_no_more_than_the_prefetch_count_is_held(broker: DramatiqBroker) -> None:
    @dramatiq.actor(broker=broker)
    def note() -> None: ...

    for _ in range(3):
        note.send()
    consumer = broker.consume("default", prefetch=2, timeout=50)
    first, second = next(consumer), next(consumer)
    assert next(consumer) is None
    assert first is not None
    assert second is not None
    consumer.ack(first)
    third = next(consumer)
    assert third is not None
    consumer.requeue([second, third])
    consumer.close()


def test_errors_are_those_that_dramatiq_knows(nexo_server: testing.Server) -> None:
    broker = DramatiqBroker(nexo_server.url, while_down="fail")

    @dramatiq.actor(broker=broker)
    def note() -> None: ...

    note.send()
    with pytest.raises(QueueNotFound):
        broker.consume("unknown")
    with pytest.raises(QueueJoinTimeout):
        broker.join("default", timeout=10)
    nexo_server.stop()
    with pytest.raises(ConnectionClosed):
        note.send()
    nexo_server.start()
    note.send()
    broker.close()


def test_a_worker_goes_on_after_a_crash_of_the_server(nexo_server: testing.Server) -> None:
    broker = DramatiqBroker(nexo_server.url)
    ran: list[int] = []

    @dramatiq.actor(broker=broker)
    def note(n: int) -> None:
        ran.append(n)

    with working(broker):
        note.send(1)
        wait_until(lambda: ran == [1])
        broker.join("default", timeout=20_000)
        nexo_server.crash()
        nexo_server.start()
        note.send(2)
        wait_until(lambda: ran == [1, 2])
    broker.close()


@pytest.fixture
def limits(client: nexo.Client) -> NexoRateLimiterBackend:
    return NexoRateLimiterBackend(client=client)


def test_concurrent_and_bucket_limits(limits: NexoRateLimiterBackend) -> None:
    for limiter in (
        ConcurrentRateLimiter(limits, "few", limit=2),
        BucketRateLimiter(limits, "bucket", limit=2, bucket=60_000),
    ):
        with limiter.acquire(), limiter.acquire(raise_on_failure=False) as second:
            assert second
            with pytest.raises(RateLimitExceeded), limiter.acquire():
                pass
    with ConcurrentRateLimiter(limits, "few", limit=1).acquire():
        pass


def test_a_window_limit_counts_over_its_seconds(limits: NexoRateLimiterBackend) -> None:
    limiter = WindowRateLimiter(limits, "window", limit=3, window=60)
    allowed = []
    for _ in range(5):
        with limiter.acquire(raise_on_failure=False) as passed:
            allowed.append(passed)
    assert allowed == [True, True, True, False, False]


def test_many_threads_never_pass_a_limit(limits: NexoRateLimiterBackend) -> None:
    passed: list[bool] = []

    def race() -> None:
        passed.append(limits.incr("race", 1, 5, 60_000))

    threads = [threading.Thread(target=race) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert passed.count(True) == 5


def test_a_barrier_opens_for_all(limits: NexoRateLimiterBackend) -> None:
    barrier = Barrier(limits, "gate", ttl=60_000)
    assert barrier.create(parties=2)
    assert not barrier.create(parties=2)
    opened: list[bool] = []
    waiter = threading.Thread(target=lambda: opened.append(barrier.wait(timeout=20_000)))
    waiter.start()
    wait_until(lambda: limits.client.store.get("gate") == 1)
    assert barrier.wait(block=False)
    waiter.join()
    assert opened == [True]
    assert not limits.wait("nothing", 10)
