"""Attempts at a task of the sink, each on its own: records are stored at least once (I4, F8)."""

from __future__ import annotations

from typing import Any

import pytest

import nexo
from nexo.hot_log import HotLog
from nexo.protocol.values import ValueType
from pyspark_nexo import sink
from pyspark_nexo.sink import BatchSink, _Outbox

ROWS = [f"r{n}" for n in range(20)]


@pytest.fixture
def log(client: nexo.Client, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(sink, "BATCH_BYTES", 1)  # a batch for each call
    return client.stream("log").create()


def attempt(url: str, *batches: list[str], flush: bool = True) -> None:
    """One attempt at a task; without ``flush`` it dies before its end."""
    outbox = _Outbox(BatchSink("log", url, 1, ValueType.TEXT))
    with HotLog(url) as broker:
        for values in batches:
            outbox.add({"value": values}, broker)
        if flush:
            outbox.flush(broker)


def stored(log: Any) -> list[str]:
    return [record.value for record in log.read()]


def test_an_attempt_stores_its_rows_in_order(log: Any, url: str) -> None:
    attempt(url, *([row] for row in ROWS))
    assert stored(log) == ROWS


def test_an_attempt_with_another_order_of_rows_loses_none(log: Any, url: str) -> None:
    """After a shuffle the second attempt brings the same rows in another order."""
    attempt(url, *([row] for row in ROWS[:10]), flush=False)
    attempt(url, *([row] for row in reversed(ROWS)))
    assert set(stored(log)) == set(ROWS)
    assert stored(log)[10:] == ROWS[::-1]
