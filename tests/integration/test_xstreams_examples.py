"""Every example of the document on stream brokers, in Python, on all three of them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import pytest
import redis

from nexo import xstreams
from nexo.xstreams import DeadLetter, StreamBroker, StreamMessage, StreamWorker
from tests.contract.redis_server import redis_server
from tests.timing import wait_until


@pytest.fixture(scope="module")
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with redis_server(tmp_path_factory.mktemp("redis")) as url:
        yield url


@pytest.fixture(params=["memory", pytest.param("redis", marks=pytest.mark.redis), "nexo"])
def broker(request: pytest.FixtureRequest) -> Iterator[StreamBroker]:
    url = "memory://"
    if request.param == "redis":
        url = request.getfixturevalue("redis_url")
        with redis.Redis.from_url(url) as client:
            client.flushall()
    elif request.param == "nexo":
        url = request.getfixturevalue("nexo_url")
    with xstreams.connect(url) as made:
        yield made


class TestUsage:
    def test_1_simple_fire_and_forget(self, broker: StreamBroker) -> None:
        broker.xadd(
            "notifications", {"type": "email", "to": "user@example.com", "subject": "Welcome!"}
        )
        broker.xadd(
            "notifications",
            {"type": "sms", "to": "+1234567890", "message": "Your code is 1234"},
        )
        assert [m.data["type"] for m in broker.xrange("notifications")] == ["email", "sms"]

    def test_2_consumer_group_processing(self, broker: StreamBroker) -> None:
        stream, group, processed = "tasks", "workers", list[Any]()
        for n in range(15):
            broker.xadd(stream, {"n": n})
        broker.create_group(stream, group, "0")

        messages = broker.xreadgroup(group, "worker-1", stream, 10)
        for message in messages:
            processed.append(message.data["n"])
            broker.xack(stream, group, [message.id])

        others = broker.xreadgroup(group, "worker-2", stream, 10)
        assert processed == list(range(10))
        assert [message.data["n"] for message in others] == list(range(10, 15))

    def test_3_blocking_reads(self, broker: StreamBroker) -> None:
        broker.create_group("tasks", "workers")
        producer = threading.Timer(0.05, broker.xadd, ("tasks", {"n": 1}))
        producer.start()
        messages = broker.xreadgroup("workers", "worker-1", "tasks", 1, 5_000)
        producer.join()
        assert [message.data for message in messages] == [{"n": 1}]
        assert broker.xack("tasks", "workers", [messages[0].id]) == 1

    def test_4_auto_claim_stale_messages(self, broker: StreamBroker) -> None:
        broker.create_group("tasks", "workers", "0")
        for n in range(3):
            broker.xadd("tasks", {"n": n})
        broker.xreadgroup("workers", "worker-1", "tasks", 3)  # and worker-1 is never seen again
        recovered = []
        time.sleep(0.04)
        for message in broker.xautoclaim("tasks", "workers", "worker-2", 30, 10):
            recovered.append((message.data["n"], message.delivery_count))
            broker.xack("tasks", "workers", [message.id])
        assert recovered == [(0, 2), (1, 2), (2, 2)]
        assert broker.xpending("tasks", "workers") == []

    def test_5_monitoring_and_management(self, broker: StreamBroker) -> None:
        broker.create_group("tasks", "workers", "0")
        ids = [broker.xadd("tasks", {"n": n}) for n in range(1_010)]
        broker.xreadgroup("workers", "worker-1", "tasks", 15)
        lines = [f"Stream has {broker.xlen('tasks')} messages"]
        for group in broker.get_group_info("tasks"):
            lines += [
                f"Group: {group.name}",
                f"  Last ID: {group.last_delivered_id}",
                f"  Pending: {group.total_pending}",
            ]
            for consumer in group.consumers:
                lines += [f"  Consumer: {consumer.name}", f"    Pending: {consumer.pending}"]
                assert abs(time.time() * 1000 - consumer.last_activity_ms) < 60_000
        assert lines == [
            "Stream has 1010 messages",
            "Group: workers",
            f"  Last ID: {ids[14]}",
            "  Pending: 15",
            "  Consumer: worker-1",
            "    Pending: 15",
        ]
        assert len(broker.xpending("tasks", "workers", "worker-1")) == 15
        assert broker.xtrim("tasks", 1_000) == 10
        assert len(broker.xpending("tasks", "workers", "worker-1")) == 5


class TestApiReference:
    def test_add(self, broker: StreamBroker) -> None:
        message_id = broker.xadd(
            "logs", {"level": "error", "message": "Database connection failed"}
        )
        assert broker.xrange("logs", message_id, message_id)[0].data["level"] == "error"

    def test_group_management(self, broker: StreamBroker) -> None:
        broker.create_group("tasks", "workers", "0")
        broker.xadd("tasks", 1)
        broker.xreadgroup("workers", "worker-1", "tasks")
        assert broker.delete_consumer("tasks", "workers", "worker-1") == 1
        broker.delete_group("tasks", "workers")
        assert broker.get_group_info("tasks") == []

    def test_reading_and_acknowledging_three(self, broker: StreamBroker) -> None:
        broker.create_group("tasks", "workers", "0")
        for n in range(3):
            broker.xadd("tasks", n)
        one, two, three = broker.xreadgroup("workers", "worker-1", "tasks", 10, 0)
        assert broker.xreadgroup("workers", "worker-1", "tasks", 10, 50) == []
        assert broker.xack("tasks", "workers", [one.id, two.id, three.id]) == 3


class Container:
    """The least that can be called dependency injection."""

    def __init__(self) -> None:
        self._made: dict[type, Any] = {}

    def add_singleton(self, kind: type, make: Callable[[], Any]) -> None:
        self._made[kind] = make()

    def get(self, kind: type) -> Any:
        return self._made[kind]


class TestPatterns:
    def test_dependency_injection(self, broker: StreamBroker) -> None:
        container = Container()
        container.add_singleton(StreamBroker, lambda: broker)
        found: StreamBroker = container.get(StreamBroker)
        found.xadd("s", 1)
        assert broker.xlen("s") == 1

    def test_background_job_processing(self, broker: StreamBroker) -> None:
        def schedule(job_type: str, data: Any) -> None:
            job = {"type": job_type, "data": data, "created_at": time.time()}
            broker.xadd("background-jobs", job)

        broker.create_group("background-jobs", "job-processors", "$")
        for job_type in ("resize", "explode", "mail"):
            schedule(job_type, {"id": job_type})
        executed = []
        for _ in range(3):
            for message in broker.xreadgroup(
                "job-processors", "worker-1", "background-jobs", 1, 5_000
            ):
                try:
                    if message.data["type"] == "explode":
                        raise RuntimeError("boom")
                    executed.append(message.data["type"])
                    broker.xack("background-jobs", "job-processors", [message.id])
                except RuntimeError:
                    pass  # not acknowledged: it will be claimed later
        assert executed == ["resize", "mail"]
        [left] = broker.xautoclaim("background-jobs", "job-processors", "worker-2", 0, 10)
        assert (left.data["type"], left.delivery_count) == ("explode", 2)

    def test_event_broadcasting(self, broker: StreamBroker) -> None:
        groups = ["analytics-processors", "notification-senders", "audit-loggers"]
        for group in groups:
            broker.create_group("events", group, "$")
        broker.xadd("events", {"type": "signup", "payload": {"user": 1}})
        broker.xadd("events", {"type": "login", "payload": {"user": 1}})
        for group in groups:
            seen = broker.xreadgroup(group, "only", "events", 10)
            assert [message.data["type"] for message in seen] == ["signup", "login"]

    def test_rate_limited_processing(self, broker: StreamBroker) -> None:
        broker.create_group("tasks", "workers", "0")
        for n in range(4):
            broker.xadd("tasks", n)
        times: list[float] = []
        worker = StreamWorker(
            broker, "tasks", "workers", "rate-limited",
            lambda message: times.append(time.monotonic()), max_per_s=20, block_ms=20,
        )  # fmt: skip
        while worker.handled < 4:
            worker.run_once()
        assert all(later - earlier > 0.045 for earlier, later in pairwise(times))

    def test_recovery_and_dead_letters(self, broker: StreamBroker) -> None:  # SPEC J5
        tries: list[int] = []

        def handler(message: StreamMessage) -> None:
            tries.append(message.delivery_count)
            raise ValueError("never works")

        broker.xadd("jobs", {"n": 1})
        worker = StreamWorker(
            broker, "jobs", "g", "w1", handler, min_idle_ms=5, max_deliveries=3, block_ms=5
        )
        with worker:
            wait_until(lambda: broker.xlen("jobs.dlq"))
        [letter] = [DeadLetter.of(message) for message in broker.xrange("jobs.dlq")]
        assert tries == [1, 2, 3]
        assert (letter.data, letter.attempts) == ({"n": 1}, 3)
        assert broker.xpending("jobs", "g") == []


class TestTroubleshooting:
    def test_what_is_wrong_can_be_seen(self, broker: StreamBroker) -> None:
        broker.create_group("tasks", "workers", "0")
        for n in range(20):
            broker.xadd("tasks", n)
        broker.xreadgroup("workers", "stuck", "tasks", 5)
        [group] = broker.get_group_info("tasks")
        assert (group.total_pending, group.lag) == (5, 15)
        assert {each.consumer for each in broker.xpending("tasks", "workers")} == {"stuck"}
