"""Times of requests are told for the last minute, not since the start."""

from __future__ import annotations

from typing import Any

from nexo.admin.watching.request_times import RECENT_S, WINDOW_S, RequestTimes
from nexo.model.histogram import Histogram

MS = 1_000_000


def status(**took_ms: list[int]) -> dict[str, Any]:
    """What a broker says whose requests so far took so long."""
    found = {}
    for op, times in took_ms.items():
        histogram = Histogram()
        for each in times:
            histogram.add(each * MS)
        found[op] = histogram.status()
    return found


def test_only_what_was_added_lately_counts() -> None:
    times = RequestTimes()
    times.seen(status(map_get=[1_000] * 50))
    times.seen(status(map_get=[1_000] * 50 + [1] * 100))
    p50_ms, p99_ms = times.recent()
    assert p50_ms is not None
    assert p99_ms is not None
    assert 0.5 < p50_ms < p99_ms < 1.1
    (row,) = times.rows()
    assert (row.op, row.count, row.waits) == ("map_get", 100, False)


def test_the_summary_leaves_out_what_waits_and_what_the_dashboard_asks() -> None:
    times = RequestTimes()
    times.seen(status())
    times.seen(status(q_pop=[20_000] * 9, q_push=[1], q_survey=[1] * 5))
    assert (times.recent()[1] or 0) < 1.1
    assert [(row.op, row.waits) for row in times.rows()] == [("q_pop", True), ("q_push", False)]


def test_a_restarted_broker_counts_from_nothing() -> None:
    times = RequestTimes()
    times.seen(status(map_get=[1] * 100))
    times.seen(status(map_get=[4] * 3))
    assert [row.count for row in times.rows()] == [3]


def test_without_requests_there_are_no_times() -> None:
    times = RequestTimes()
    assert times.recent() == (None, None)
    for _ in range(3):
        times.seen(status(map_get=[1]))
    assert times.recent() == (None, None)
    assert times.rows() == []


def test_the_summary_looks_back_less_far_than_the_rows() -> None:
    times = RequestTimes()
    times.seen(status(map_get=[1]))
    for _ in range(RECENT_S + 1):
        times.seen(status(map_get=[1, 1]))
    assert times.recent() == (None, None)
    assert [row.count for row in times.rows()] == [1]
    for _ in range(WINDOW_S):
        times.seen(status(map_get=[1, 1]))
    assert times.rows() == []
