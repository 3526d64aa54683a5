"""Streams over TCP with the sync client: the same API without await (SPEC K1)."""

from __future__ import annotations

import threading
from collections.abc import Callable
from itertools import islice
from typing import Any

import pytest

import nexo
from nexo.client.stream_records import Record

WAIT_S = 30.0


class Gathered:
    """Records a handler saw, to wait for."""

    def __init__(self, count: int) -> None:
        self.values: list[Any] = []
        self.full = threading.Event()
        self._count = count

    def handler(self) -> Callable[[Record[Any]], None]:
        def handle(record: Record[Any]) -> None:
            self.values.append(record.value)
            if len(self.values) == self._count:
                self.full.set()

        return handle


def test_records_are_published_consumed_and_acked(client: nexo.Client) -> None:
    events = client.stream("events").create(partitions=2)
    assert events.publish("a", key="k").offset == 0
    events.publish_many(["b", "c"], keys=["k", "k"])
    with events.consume("g") as consumer:
        records = list(islice(consumer, 3))
        consumer.ack(*records)
    assert [record.value for record in records] == ["a", "b", "c"]
    assert events.group("g").lag() == 0


def test_a_subscription_runs_beside_the_caller(client: nexo.Client) -> None:
    events = client.stream("events").create()
    seen = Gathered(50)
    subscription = events.subscribe("g", seen.handler(), concurrency=3)
    events.publish_many(list(range(50)))
    assert seen.full.wait(WAIT_S)
    subscription.close()
    assert sorted(seen.values) == list(range(50))
    assert events.group("g").lag() == 0


def test_a_transaction_commits_or_rolls_back(client: nexo.Client) -> None:
    events = client.stream("events").create()
    with client.transaction() as tx:
        tx.publish("events", 1)
    with pytest.raises(ZeroDivisionError), client.transaction() as tx:
        tx.publish("events", 1 / 0)
    assert [record.value for record in events.read()] == [1]
