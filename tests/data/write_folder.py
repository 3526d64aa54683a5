"""Writes the data folder ``folder-0.1.0`` that `tests/integration/test_old_folder.py` opens.

Run once, with the sources of the version whose format is to be kept::

    git worktree add ../old a6461d2
    PYTHONPATH=../old/src python tests/data/write_folder.py tests/data/folder-0.1.0

Two lives: the first ends with a graceful stop, which leaves snapshots, the second with a crash,
which leaves journals only. Nothing in it ever expires.
"""

from __future__ import annotations

import shutil
import sys
from importlib import import_module
from pathlib import Path

import nexo
from nexo.testing import Server

FAR = "3000d"


def first_life(client: nexo.Client) -> None:
    store = client.store
    store.set("text", "Grüße")
    store.set("raw", b"\x00\xff")
    store.set("json", {"nested": [1, 2.5, None, True]})
    store.set("empty", "")
    store.set("nothing", None)
    store.set("number", 41)
    store.incr("number")
    store.set("lasting", "a", ttl=3000 * 86_400)
    store.map("session").set_many({"user": "ada", "visits": 3})
    store.list("recent").push("a", b"b", 3)
    store.set_("tags").add("x", "y")
    pubsub = client.pubsub
    for number in range(60):
        pubsub.publish("plant/0/state", f"before {number}", retain=True)
    for number in range(20):
        pubsub.publish(f"plant/{number}/state", {"on": number % 2 == 0}, retain=True)
    pubsub.publish("plant/text", "hello", retain=True, ttl=3000 * 86_400)
    pubsub.publish("plant/raw", b"\x01\x02", retain=True)
    pubsub.publish("plant/gone", "x", retain=True)
    pubsub.publish("plant/gone", b"", retain=True)
    jobs = client.queue("jobs").create(max_retries=0)
    jobs.push_many([{"job": number} for number in range(10)])
    jobs.push("urgent", priority=200)
    jobs.push("later", delay=FAR)
    (job,) = jobs.pop(1)
    assert job.value == "urgent"
    job.nack("it burnt")
    (job,) = jobs.pop(1)
    job.ack()
    quick = client.queue("quick").create(persistence="file_async")
    quick.push_many([b"a", "b", {"c": 3}])
    client.queue("yearly").create().cron.set("new-year", "0 0 1 1 *", {"greet": True})
    events = client.stream("events").create(retention={"max_age": 0, "max_bytes": 0})
    events.publish_many([{"n": number} for number in range(50)])
    with events.consume("shared", batch=10, wait=1) as consumer:
        records = list(consumer.fetch())
        consumer.ack(*records[:5], records[7])
    lanes = client.stream("lanes").create(
        partitions=3, persistence="file_sync", retention={"max_age": 0, "max_bytes": 0}
    )
    for number in range(9):
        lanes.publish(f"v{number}", key=f"k{number % 4}", headers={"trace": str(number)})


def second_life(client: nexo.Client, topics_url: str) -> None:
    client.store.set("late", "not saved: the store keeps what a graceful stop saved")
    client.pubsub.publish("plant/0/state", "changed", retain=True)
    client.pubsub.publish("plant/1/state", b"", retain=True)
    client.pubsub.publish("plant/late", ["late"], retain=True)
    client.queue("jobs").push("after", priority=1)
    client.queue("quick").push("d")
    client.stream("events").publish_many([{"n": number} for number in range(50, 55)])
    topics = import_module("nexo.topics")
    with topics.Consumer("lanes", "ordered", server=topics_url, auto_commit=False) as consumer:
        for _ in range(9):
            assert consumer.poll(5.0)
        consumer.commit()


def main(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    # So few changes are worth a snapshot only here.
    journal = import_module("nexo.server.dialects.nexo.pubsub_journal")
    journal.CHECKPOINT_BYTES = 512  # type: ignore[attr-defined]
    server = Server(data_dir=folder, store_snapshot_ms=3_600_000)
    server.start()
    with nexo.connect(server.url) as client:
        first_life(client)
    server.stop()
    journal.CHECKPOINT_BYTES = 1 << 20  # type: ignore[attr-defined]
    server.start()
    with nexo.connect(server.url) as client:
        second_life(client, server.url)
        server.crash()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
