"""Streams are taken when their lag is up, and failing ones pause alone (SPEC I8)."""

from __future__ import annotations

from pyspark_nexo.pace import LONGEST_PAUSE_S, Lag, Pace


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_a_stream_waits_for_its_lag_or_its_rows_or_bytes() -> None:
    clock = Clock()
    pace = Pace(Lag(10, rows=100, bytes=1_000), {"quick": Lag(1)}, clock=clock)
    assert not pace.due("slow", 1, 10)
    assert not pace.due("quick", 1, 10)
    clock.now_s = 1
    assert pace.due("quick", 1, 10)
    assert not pace.due("slow", 2, 20)
    assert pace.due("slow", 100, 20)
    assert pace.due("slow", 2, 1_000)
    clock.now_s = 10
    assert pace.due("slow", 2, 20)
    pace.took("slow")
    assert not pace.due("slow", 1, 10)


def test_the_time_of_a_micro_batch_is_part_of_the_lag() -> None:
    clock = Clock()
    pace = Pace(Lag(10), ahead_s=4, clock=clock)
    assert not pace.due("log", 1, 1)
    clock.now_s = 6
    assert pace.due("log", 1, 1)


def test_a_failing_stream_pauses_ever_longer_and_alone() -> None:
    clock = Clock()
    pace, pauses = Pace(clock=clock), []
    for _ in range(9):
        pace.failed("bad", 1.0)
        failed_s = clock.now_s
        assert pace.ready(["bad", "good"]) == ["good"]
        while pace.ready(["bad"]) == []:
            clock.now_s += 0.5
        pauses.append(clock.now_s - failed_s)
    assert pauses == [2, 4, 8, 16, 32, 60, 60, 60, 60]
    assert max(pauses) == LONGEST_PAUSE_S
    pace.went_well(["bad"])
    pace.failed("bad", 1.0)
    clock.now_s += 2
    assert pace.ready(["bad"]) == ["bad"]
