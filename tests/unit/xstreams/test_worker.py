"""The worker: acknowledge, retry, dead-letter, keep to a rate, stop (SPEC J5)."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from nexo.errors import (
    Conflict,
    ConnectionLost,
    InvalidInput,
    InvalidOption,
    Overloaded,
    PayloadTooLarge,
)
from nexo.protocol.values import encode_value
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
    [letter] = broker.xrange("jobs.dlq")
    assert DeadLetter.of(letter) == DeadLetter(
        "jobs", "g", message_id, {"task": 7}, 3, "ValueError: cannot do {'task': 7}"
    )
    assert (working.failed, working.dead_lettered) == (3, 1)
    assert broker.xpending("jobs", "g") == []


def test_a_message_that_kills_its_workers_is_dead_lettered_without_another_try(
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
    assert (letter.data, letter.attempts, letter.reason) == (b"\x00poison\xff", 3, "")


def test_a_letter_keeps_the_names_that_older_versions_stored() -> None:
    stored = {
        "stream": "jobs", "group": "g", "id": "1-1", "data": 7, "deliveries": 3, "error": "no",
        "omitted_bytes": 0,
    }  # fmt: skip
    letter = DeadLetter.of(StreamMessage("2-1", stored, 2))
    assert (letter.attempts, letter.reason) == (3, "no")
    assert letter.encoded() == stored


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
    stopping = threading.Thread(target=working.close)
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


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("count", 0),
        ("count", 1 << 63),
        ("block_ms", -1),
        ("block_ms", None),
        ("min_idle_ms", -1),
        ("min_idle_ms", 0.5),
        ("max_deliveries", 0),
        ("max_deliveries", "5"),
        ("max_per_s", 0),
        ("max_per_s", math.nan),
        ("max_per_s", math.inf),
        ("max_per_s", "fast"),
        ("start_at", "xx"),
    ],
)
def test_bad_options_are_refused(broker: LocalStreamBroker, option: str, value: Any) -> None:
    with pytest.raises(InvalidOption, match=option):
        worker(broker, fail, **{option: value})


@pytest.mark.parametrize("bad", ["", "a b", 7])
def test_bad_names_are_refused(broker: LocalStreamBroker, bad: Any) -> None:
    for stream, group, consumer in ((bad, "g", "w"), ("jobs", bad, "w"), ("jobs", "g", bad)):
        with pytest.raises(InvalidInput):
            StreamWorker(broker, stream, group, consumer, fail)


def test_a_stream_whose_dead_letters_could_have_no_name_is_refused(
    broker: LocalStreamBroker,
) -> None:
    with pytest.raises(InvalidInput, match="dlq"):
        StreamWorker(broker, "s" * 252, "g", "w", fail)


class Narrow(LocalStreamBroker):
    """Takes no message of more than so many bytes."""

    max_bytes = 4_000

    def xadd(self, stream: str, data: Any) -> str:
        if len(encode_value(data)) > self.max_bytes:
            raise PayloadTooLarge("too large")
        return super().xadd(stream, data)


@pytest.mark.parametrize("data", [b"\xff" * 3_990, "x" * 3_990, {"list": [1] * 1_900}])
def test_a_letter_that_does_not_fit_loses_its_data(data: Any, ticks: Clock) -> None:
    """SPEC J5: after the delivery limit it goes to the dead letters, whatever its size."""
    broker = Narrow(ticks=ticks)
    broker.create_group("jobs", "g", "0")
    large, small = broker.xadd("jobs", data), broker.xadd("jobs", "small")
    working = worker(broker, fail, max_deliveries=1)
    working.run_once()
    first, second = map(DeadLetter.of, broker.xrange("jobs.dlq"))
    assert (first.id, first.data, first.omitted_bytes) == (large, None, len(encode_value(data)) - 1)
    assert (second.id, second.data, second.omitted_bytes) == (small, "small", 0)
    assert (working.dead_lettered, broker.xpending("jobs", "g")) == (2, [])
    assert [message.data for message in broker.xrange("jobs", first.id, first.id)] == [data]


def test_raw_data_lies_raw_in_its_letter(broker: LocalStreamBroker) -> None:
    data = bytes(range(256)) * 4 + b"\n{}"
    broker.xadd("jobs", data)
    worker(broker, fail, max_deliveries=1).run_once()
    [letter] = broker.xrange("jobs.dlq")
    assert len(encode_value(letter.data)) < len(data) + 2_000
    assert DeadLetter.of(letter).data == data


@pytest.mark.usefixtures("unlogged")
def test_what_a_handler_says_is_kept_short(broker: LocalStreamBroker) -> None:
    class Unspeakable(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no words")

    said = iter([ValueError("x" * 10_000), Unspeakable(), ValueError("\ud800".join("ab"))])

    def handler(message: StreamMessage) -> None:
        raise next(said)

    for n in range(3):
        broker.xadd("jobs", n)
    worker(broker, handler, max_deliveries=1).run_once()
    first, second, third = (DeadLetter.of(each).reason for each in broker.xrange("jobs.dlq"))
    assert first.startswith("ValueError: xxx")
    assert len(first) == 1_000
    assert second == "Unspeakable"
    assert "ud800" in third


@pytest.mark.parametrize("refused", ["jobs.dlq", "jobs"])
def test_a_message_that_cannot_be_settled_holds_up_no_other(ticks: Clock, refused: str) -> None:
    """SPEC J5: it stays pending and is tried again; the others are handled."""

    class Refusing(LocalStreamBroker):
        def xadd(self, stream: str, data: Any) -> str:
            if stream == "jobs.dlq" == refused:
                raise Conflict("the stream has 2 partitions")
            return super().xadd(stream, data)

        def xack(self, stream: str, group: str, ids: Iterable[str]) -> int:
            ids = list(ids)
            if refused == "jobs" and ids[0] == bad:
                raise Overloaded("not now")
            return super().xack(stream, group, ids)

    broker = Refusing(ticks=ticks)
    broker.create_group("jobs", "g", "0")
    bad = broker.xadd("jobs", "bad")
    seen: list[Any] = []

    def handler(message: StreamMessage) -> None:
        seen.append(message.data)
        if message.data == "bad":
            fail(message)

    for n in range(3):
        broker.xadd("jobs", n)
    working = worker(broker, handler, max_deliveries=1)
    assert working.run_once() == 4
    assert (seen, working.handled, working.dead_lettered) == (["bad", 0, 1, 2], 3, 0)
    assert [each.id for each in broker.xpending("jobs", "g")] == [bad]


def test_a_message_behind_a_slow_handler_is_nobody_elses(
    broker: LocalStreamBroker, ticks: Clock
) -> None:
    """SPEC J5: ``min_idle_ms`` is longer than one handler takes, not than a whole batch does."""
    seen: list[Any] = []

    def handler(message: StreamMessage) -> None:
        for _ in range(8):
            ticks.now += 100
            assert broker.xautoclaim("jobs", "g", "other", 1_000, 100) == []
        seen.append((message.data, message.delivery_count))

    for n in range(10):
        broker.xadd("jobs", n)
    working = worker(broker, handler, min_idle_ms=1_000, count=10)
    assert working.run_once() == 10
    assert seen == [(n, 1) for n in range(10)]


def test_a_message_that_waits_for_the_rate_is_nobody_elses(
    broker: LocalStreamBroker, ticks: Clock
) -> None:
    class Pausing(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            ticks.now += round((timeout or 0) * 1_000)
            assert broker.xautoclaim("jobs", "g", "other", 1_000, 100) == []
            return False

    seen: list[Any] = []
    for n in range(4):
        broker.xadd("jobs", n)
    working = worker(broker, lambda message: seen.append(message.data), max_per_s=0.25)
    working._stopping = Pausing()
    assert working.run_once() == 4
    assert seen == [0, 1, 2, 3]


def test_what_another_has_claimed_meanwhile_is_left_to_it(
    broker: LocalStreamBroker, ticks: Clock
) -> None:
    seen: list[Any] = []

    def handler(message: StreamMessage) -> None:
        seen.append(message.data)
        ticks.now += 5_000
        broker.xautoclaim("jobs", "g", "other", 1_000, 100)

    for n in range(3):
        broker.xadd("jobs", n)
    worker(broker, handler).run_once()
    assert seen == [0]
    assert {each.consumer for each in broker.xpending("jobs", "g")} == {"other"}


@pytest.mark.parametrize(
    "data", [None, "text", {}, {"stream": "s"}, b"", b"raw", b"{}\nraw", b"[1]\n", b"7\nx"]
)
def test_other_messages_are_no_dead_letters(data: Any) -> None:
    with pytest.raises(InvalidInput):
        DeadLetter.of(StreamMessage("1-1", data, 1))
