"""The broker in memory: threads, clocks and the cost of reading."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nexo.xstreams import LocalStreamBroker
from nexo.xstreams.ids import MessageId
from nexo.xstreams.local_log import LocalLog


class Clock:
    """Milliseconds that pass when the test says so."""

    def __init__(self, now: int = 1_000) -> None:
        self.now = now

    def __call__(self) -> int:
        return self.now


class TestClocks:
    def test_ids_rise_though_the_clock_steps_back(self) -> None:  # SPEC J2
        clock = Clock(1_000)
        broker = LocalStreamBroker(clock=clock)
        added = [broker.xadd("s", 1), broker.xadd("s", 2)]
        clock.now = 400
        added.append(broker.xadd("s", 3))
        clock.now = 1_001
        added.append(broker.xadd("s", 4))
        assert added == ["1000-0", "1000-1", "1000-2", "1001-0"]

    def test_idle_times_do_not_follow_the_wall_clock(self) -> None:
        clock, ticks = Clock(), Clock(0)
        broker = LocalStreamBroker(clock=clock, ticks=ticks)
        broker.create_group("s", "g", "0")
        broker.xadd("s", 1)
        broker.xreadgroup("g", "a", "s")
        clock.now += 3_600_000
        assert broker.xautoclaim("s", "g", "b", 100) == []
        ticks.now = 99
        assert broker.xautoclaim("s", "g", "b", 100) == []
        ticks.now = 100
        assert broker.xpending("s", "g")[0].idle_ms == 100
        assert [each.delivery_count for each in broker.xautoclaim("s", "g", "b", 100)] == [2]
        assert broker.xpending("s", "g")[0].idle_ms == 0


class TestThreads:
    def test_every_blocked_reader_is_woken_by_its_own_message(self) -> None:
        broker = LocalStreamBroker()
        broker.create_group("s", "g")
        with ThreadPoolExecutor(16) as pool:
            blocked = [
                pool.submit(broker.xreadgroup, "g", f"c{n}", "s", 1, None) for n in range(16)
            ]
            for n in range(16):
                broker.xadd("s", n)
            got = [message.data for each in blocked for message in each.result(10)]
        assert sorted(got) == list(range(16))


class Lookups(dict[MessageId, bytes]):
    """The values of a log; counts how often one is looked up."""

    count = 0

    def get(self, *args: Any) -> Any:
        self.count += 1
        return super().get(*args)


def lookups(log: LocalLog) -> Lookups:
    log._values = counting = Lookups(log._values)
    return counting


class TestCost:
    """SPEC J4: read cost does not grow with stream length. Measured in values looked up."""

    @pytest.mark.parametrize("length", [1_000, 1_000_000])
    def test_reading_looks_at_what_it_returns_and_no_more(self, length: int) -> None:
        log = LocalLog()
        for n in range(length):
            log.append(b"", n)
        for start in (0, length // 2, length - 10):
            looked = lookups(log)
            rows = log.since(MessageId(start, 0))
            assert [next(rows)[0].ms for _ in range(10)] == list(range(start, start + 10))
            assert looked.count == 10

    def test_reading_behind_a_trimmed_front_looks_at_nothing_trimmed(self) -> None:
        log = LocalLog()
        for n in range(10_000):
            log.append(b"", n)
            if n >= 100:
                log.trim(1)
        looked = lookups(log)
        assert next(log.since(MessageId(0, 0)))[0].ms == 9_900
        assert looked.count == 1
        assert len(log._ids) < 400

    def test_reading_behind_a_deleted_front_looks_at_nothing_deleted(self) -> None:
        log = LocalLog()
        added = [log.append(b"", n) for n in range(10_000)]
        for message_id in added[:4_900]:
            log.delete(message_id)
        looked = lookups(log)
        assert next(log.since(MessageId(0, 0)))[0].ms == 4_900
        assert looked.count == 1

    def test_a_group_reads_a_long_stream_in_one_look_per_message(self) -> None:
        broker = LocalStreamBroker(max_stream_length=50_000)
        broker.create_group("s", "g", "0")
        for n in range(20_000):
            broker.xadd("s", n)
        looked = lookups(broker._streams["s"].log)
        for _ in range(100):
            broker.xreadgroup("g", "c", "s", 3)
        assert looked.count == 300


@given(st.lists(st.one_of(st.just("add"), st.integers(0, 60), st.tuples(st.integers(1, 9)))))
def test_the_log_does_as_a_plain_list(steps: list[str | int | tuple[int]]) -> None:
    """``add``, delete the id of that number, trim so many: against a dict."""
    log, model, added = LocalLog(), dict[MessageId, bytes](), list[MessageId]()
    for number, step in enumerate(steps * 4):
        match step:
            case int(at) if at < len(added):
                assert log.delete(added[at]) == (model.pop(added[at], None) is not None)
            case (count,):
                count = min(count, len(model))
                gone = sorted(model)[:count]
                assert log.trim(count) == gone
                for each in gone:
                    del model[each]
            case _:
                added.append(log.append(str(number).encode(), number // 3))
                model[added[-1]] = str(number).encode()
        assert len(log) == len(model)
        assert dict(log.since(MessageId(0, 0))) == model
        assert all(log[each] == value for each, value in model.items())
    assert added == sorted(set(added))
