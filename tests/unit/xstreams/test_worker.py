"""The worker: acknowledge, retry, bury, keep to a rate, stop (SPEC J5)."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from nexo.errors import ConnectionLost, InvalidInput, InvalidOption
from nexo.xstreams import DeadLetter, LocalStreamBroker, StreamMessage, StreamWorker


class Clock:
    now = 0

    def __call__(self) -> int:
        return self.now


@pytest.fixture
def ticks() -> Clock:
    return Clock()


@pytest.fixture
def broker(ticks: Clock) -> LocalStreamBroker:
    made = LocalStreamBroker(ticks=ticks)
    made.create_group("jobs", "g", "0")
    return made


def worker(
    broker: LocalStreamBroker, handler: Callable[[StreamMessage], Any], **options: Any
) -> StreamWorker:
    settings: dict[str, Any] = {
        "block_ms": 0,
        "min_idle_ms": 1_000,
        "clock_s": lambda: broker._ticks() / 1_000,
    }
    return StreamWorker(broker, "jobs", "g", "w1", handler, **(settings | options))


def fail(message: StreamMessage) -> None:
    raise ValueError(f"cannot do {message.data}")


def test_what_is_handled_is_acknowledged(broker: LocalStreamBroker) -> None:
    seen: list[Any] = []
    working = worker(broker, lambda message: seen.append(message.data))
    for n in range(3):
        broker.xadd("jobs", n)
    assert working.run_once() == 3
    assert (seen, working.handled) == ([0, 1, 2], 3)
    assert broker.xpending("jobs", "g") == []


def test_a_failure_stays_pending_and_the_rest_goes_on(broker: LocalStreamBroker) -> None:
    def handler(message: StreamMessage) -> None:
        if message.data == 1:
            fail(message)

    for n in range(3):
        broker.xadd("jobs", n)
    working = worker(broker, handler)
    working.run_once()
    assert (working.handled, working.failed) == (2, 1)
    assert len(broker.xpending("jobs", "g")) == 1


def test_a_failure_is_tried_again_once_it_is_stale(broker: LocalStreamBroker, ticks: Clock) -> None:
    tries: list[int] = []

    def handler(message: StreamMessage) -> None:
        tries.append(message.delivery_count)
        if len(tries) < 3:
            fail(message)

    broker.xadd("jobs", "a")
    working = worker(broker, handler)
    for _ in range(3):
        working.run_once()
        ticks.now += 1_000
    assert tries == [1, 2, 3]
    assert broker.xpending("jobs", "g") == []


def test_after_the_delivery_limit_it_goes_to_the_dead_letters(
    broker: LocalStreamBroker, ticks: Clock
) -> None:
    message_id = broker.xadd("jobs", {"task": 7})
    working = worker(broker, fail, max_deliveries=3)
    for _ in range(5):
        working.run_once()
        ticks.now += 1_000
    [buried] = broker.xrange("jobs.dlq")
    assert DeadLetter.of(buried) == DeadLetter(
        "jobs", "g", message_id, {"task": 7}, 3, "ValueError(\"cannot do {'task': 7}\")"
    )
    assert (working.failed, working.buried) == (3, 1)
    assert broker.xpending("jobs", "g") == []


def test_a_message_that_kills_its_workers_is_buried_without_another_try(
    broker: LocalStreamBroker,
) -> None:
    broker.xadd("jobs", b"\x00poison\xff")
    broker.xreadgroup("g", "dead", "jobs")
    broker.xautoclaim("jobs", "g", "dead", 0)
    tried: list[Any] = []
    working = worker(broker, tried.append, max_deliveries=2, min_idle_ms=0)
    working.run_once()
    assert tried == []
    letter = DeadLetter.of(broker.xrange("jobs.dlq")[0])
    assert (letter.data, letter.deliveries, letter.error) == (b"\x00poison\xff", 3, "")


def test_another_workers_stale_messages_are_recovered(
    broker: LocalStreamBroker, ticks: Clock
) -> None:
    broker.xadd("jobs", "left behind")
    broker.xreadgroup("g", "dead", "jobs")
    seen: list[Any] = []
    working = worker(broker, lambda message: seen.append(message.data))
    working.run_once()
    assert seen == []
    ticks.now += 1_000
    working.run_once()
    assert seen == ["left behind"]


def test_the_rate_is_kept(broker: LocalStreamBroker) -> None:
    pauses: list[float] = []
    now_s = [100.0]

    class Pausing(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            pauses.append(round(timeout or 0, 6))
            now_s[0] += timeout or 0
            return False

    for n in range(4):
        broker.xadd("jobs", n)
    working = worker(broker, lambda message: None, max_per_s=10, clock_s=lambda: now_s[0])
    working._stopping = Pausing()
    working.run_once()
    assert pauses == [0, 0.1, 0.1, 0.1]


def test_stopping_finishes_the_message_at_hand_and_leaves_the_rest_pending() -> None:
    broker = LocalStreamBroker()
    begun, go_on = threading.Event(), threading.Event()

    def handler(message: StreamMessage) -> None:
        begun.set()
        assert go_on.wait(10)

    working = StreamWorker(broker, "jobs", "g", "w1", handler, count=5, block_ms=20)
    for n in range(3):
        broker.xadd("jobs", n)
    working.start()
    assert begun.wait(10)
    stopping = threading.Thread(target=working.stop)
    stopping.start()
    assert working._stopping.wait(10)
    go_on.set()
    stopping.join(10)
    assert not stopping.is_alive()
    assert working.handled == 1
    assert len(broker.xpending("jobs", "g")) == 2


def test_a_worker_makes_its_group_and_works_in_a_thread() -> None:
    broker = LocalStreamBroker()
    broker.xadd("mail", "hello")
    got = threading.Event()
    with StreamWorker(broker, "mail", "g", "w1", lambda message: got.set(), block_ms=20):
        assert got.wait(10)


def test_a_broker_that_fails_for_a_while_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nexo.xstreams.worker._RETRY_S", 0.001)

    class Flaky(LocalStreamBroker):
        failures = 2

        def xreadgroup(self, *given: Any, **options: Any) -> list[StreamMessage]:
            if self.failures:
                self.failures -= 1
                raise ConnectionLost("gone for a moment")
            return super().xreadgroup(*given, **options)

    broker, got = Flaky(), threading.Event()
    broker.xadd("jobs", 1)
    with StreamWorker(broker, "jobs", "g", "w1", lambda message: got.set(), block_ms=20):
        assert got.wait(10)


@pytest.mark.parametrize("options", [{"max_deliveries": 0}, {"max_per_s": 0}])
def test_bad_options_are_refused(broker: LocalStreamBroker, options: dict[str, Any]) -> None:
    with pytest.raises(InvalidOption):
        worker(broker, fail, **options)


@pytest.mark.parametrize("data", [None, "text", {}, {"stream": "s"}, {"base64": True}])
def test_other_messages_are_no_dead_letters(data: Any) -> None:
    with pytest.raises(InvalidInput):
        DeadLetter.of(StreamMessage("1-1", data, 1))
