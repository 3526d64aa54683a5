"""Sixteen threads on the broker in memory."""

from __future__ import annotations

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

from nexo.xstreams import LocalStreamBroker


@pytest.mark.slow
def test_sixteen_threads_deliver_200000_messages_once_per_group_and_ack_once() -> None:
    total, producers, readers = 200_000, 4, 6
    broker = LocalStreamBroker(max_stream_length=total, max_pending=5_000)
    groups = ["billing", "audit"]
    for group in groups:
        broker.create_group("s", group, "0")
    done = threading.Event()

    def produce(number: int) -> None:
        for n in range(number, total, producers):
            broker.xadd("s", n)

    def consume(reader: int) -> tuple[str, list[int], int]:
        group, mine, acked = groups[reader % 2], list[int](), 0
        while True:
            finished = done.is_set()
            messages = broker.xreadgroup(group, f"c{reader}", "s", 100, 0 if finished else 20)
            mine += [message.data for message in messages]
            acked += broker.xack("s", group, [message.id for message in messages])
            if finished and not messages:
                return group, mine, acked

    with ThreadPoolExecutor(producers + 2 * readers) as pool:
        consuming = [pool.submit(consume, reader) for reader in range(2 * readers)]
        list(pool.map(produce, range(producers)))
        done.set()
        results = [each.result() for each in consuming]
    for group in groups:
        seen = Counter(n for name, mine, _ in results if name == group for n in mine)
        assert len(seen) == total
        assert set(seen.values()) == {1}
        assert sum(acked for name, _, acked in results if name == group) == total
    assert [(info.total_pending, info.lag) for info in broker.get_group_info("s")] == [(0, 0)] * 2
