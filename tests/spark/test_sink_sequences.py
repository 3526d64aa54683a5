"""A task of the sink that runs again stores each record once, and never less than all (F8)."""

from __future__ import annotations

from typing import Any

import pytest

import nexo
from nexo.errors import OutOfOrderSequence
from nexo.hot_log import HotLog
from nexo.protocol.values import ValueType
from pyspark_nexo import sink
from pyspark_nexo.sink import BatchSink, _Outbox


@pytest.fixture
def log(client: nexo.Client, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(sink, "BATCH_BYTES", 1)  # a batch for each call
    return client.stream("log").create()


def run(url: str, *batches: list[str], first: int = 0) -> int:
    outbox = _Outbox(BatchSink("log", url, 1, ValueType.TEXT, "job"), "job:0")
    outbox._sequences["log", 0] = first
    with HotLog(url) as broker:
        for values in batches:
            outbox.add({"value": values}, broker)
        return outbox.flush(broker)


def stored(log: Any) -> list[str]:
    return [record.value for record in log.read()]


ROWS = [f"r{n}" for n in range(20)]


def test_a_task_that_runs_again_stores_nothing_twice(log: Any, url: str) -> None:
    assert run(url, *([row] for row in ROWS)) == 20
    assert run(url, *([row] for row in ROWS)) == 20
    assert stored(log) == ROWS


def test_a_task_that_got_half_way_goes_on_from_there(log: Any, url: str) -> None:
    run(url, *([row] for row in ROWS[:10]))
    assert run(url, *([row] for row in ROWS)) == 20
    assert stored(log) == ROWS


def test_a_task_that_cuts_its_rows_otherwise_stores_what_is_missing(
    log: Any, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(url, *([row] for row in ROWS[:10]))
    monkeypatch.setattr(sink, "BATCH_BYTES", 10**6)
    run(url, ROWS)
    assert stored(log) == ROWS


def test_a_gap_is_an_error_and_not_silence(log: Any, url: str) -> None:
    run(url, *([row] for row in ROWS[:3]))
    with pytest.raises(OutOfOrderSequence):
        run(url, *([row] for row in ROWS[5:]), first=5)
    assert stored(log) == ROWS[:3]
