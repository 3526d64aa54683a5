"""What ``nexo top`` works out from two looks at a server."""

from __future__ import annotations

from typing import Any

from nexo.cli.operate.figures import Board, Sample, broker_rows, rate
from nexo.errors import ConnectionLost


def queue_status(pushed: int, finished: int, cpu_s: float) -> dict[str, Any]:
    counts = {"waiting": 5, "scheduled": 0, "working": 2, "dead": 1}
    totals = {"pushed_total": pushed, "finished_total": finished}
    return {
        **counts, **totals, "connections": 3, "disk": {"sync_ms": 0.2},
        "process": {"cpu_s": cpu_s, "rss_bytes": 1024},
    }  # fmt: skip


def test_rates_and_load_are_per_second_of_the_interval() -> None:
    before = Sample(10.0, {"queue": queue_status(100, 50, 1.0)})
    now = Sample(12.0, {"queue": queue_status(300, 150, 1.5)})
    (row,) = broker_rows(before, now)
    assert (row["in_per_s"], row["out_per_s"], row["cpu_percent"]) == (100, 50, 25.0)
    assert row["holds"] == "5 waiting, 0 scheduled, 2 working, 1 dead"


def test_one_of_a_thing_is_not_many() -> None:
    rest = {"used_bytes": 0, "connections": 0, "disk": {}, "process": {}}
    held = [
        broker_rows(Sample(1.0, {"store": {}}), Sample(2.0, {"store": rest | {"keys": keys}}))
        for keys in (1, 2_000)
    ]
    assert [row["holds"] for (row,) in held] == ["1 key, 0 B", "2,000 keys, 0 B"]


def test_a_restarted_broker_counts_from_zero() -> None:
    assert rate({"published": 1_000}, {"published": 10}, "published", 2.0) == 5


def test_a_broker_without_an_answer_is_shown_as_down() -> None:
    up = Sample(1.0, {"queue": queue_status(1, 1, 1.0)})
    down = Sample(2.0, {"queue": ConnectionLost("it is gone")})
    rows = [(row["up"], row["holds"]) for row in broker_rows(up, down)]
    assert rows == [(False, "no answer: it is gone")]
    assert [row["in_per_s"] for row in broker_rows(down, up)] == [0]


def test_the_busiest_come_first_and_only_so_many() -> None:
    board = Board({"in_per_s": "pushed"})
    for second, pushed in ((1.0, 100), (3.0, 300)):
        board.see(("idle",), {"queue": "idle", "pushed": 5}, second)
        board.see(("q",), {"queue": "q", "pushed": pushed}, second)
    rows = board.top(10, "in_per_s")
    assert [(row["queue"], row["in_per_s"]) for row in rows] == [("q", 100), ("idle", 0)]
    assert len(board.top(1, "in_per_s")) == 1


def test_a_row_that_is_new_has_no_rate_yet_and_one_that_is_gone_is_not_shown() -> None:
    board = Board({"in_per_s": "published"})
    board.see(("s",), {"published": 10}, 1.0)
    assert [row["in_per_s"] for row in board.top(5, "in_per_s")] == [0]
    board.end_round()
    assert len(board.top(5, "in_per_s")) == 1
    board.end_round()
    assert board.top(5, "in_per_s") == []
