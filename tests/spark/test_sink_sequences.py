"""Attempts at a task of the sink, each on its own: records are stored at least once (I4, F8)."""

from __future__ import annotations

from typing import Any

import pytest

import nexo
from nexo.batch.partitions import partition_of
from nexo.hot_log import HotLog
from nexo.protocol.values import ValueType
from pyspark_nexo.publishing import outbox as outboxes
from pyspark_nexo.publishing.outbox import DirectOutbox

ROWS = [f"r{n}" for n in range(20)]


@pytest.fixture
def log(client: nexo.Client, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(outboxes, "BATCH_BYTES", 1)  # a batch for each call
    return client.stream("log").create()


def attempt(url: str, *batches: list[str], flush: bool = True) -> None:
    """One attempt at a task; without ``flush`` it dies before its end."""
    with HotLog(url) as broker:
        outbox = DirectOutbox(broker, "log", 1, ValueType.TEXT)
        for values in batches:
            outbox.add({"value": values})
        if flush:
            outbox.flush()


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


def test_rows_are_placed_again_when_partitions_were_added(
    client: nexo.Client, url: str
) -> None:  # SPEC E1
    log: Any = client.stream("log").create(partitions=2)
    keys = [f"k{n}" for n in range(20)]
    with HotLog(url) as broker:
        outbox = DirectOutbox(broker, "log", 2, ValueType.TEXT)
        outbox.add({"value": ROWS, "key": keys})
        log.update(partitions=5)
        outbox.add({"value": ["named"], "key": [None], "partition": [1]})
        assert outbox.flush() == 21
    found = {p: [(row.key, row.value) for row in log.read(p)] for p in range(5)}
    assert sorted(value for rows in found.values() for _, value in rows) == sorted([*ROWS, "named"])
    assert (None, "named") in found[1]
    for partition, rows in found.items():
        homes = [partition_of(key.encode(), 5) for key, _ in rows if key is not None]
        assert set(homes) <= {partition}
