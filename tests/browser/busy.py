"""A server with something on every page, and traffic while the tests look."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import nexo
from nexo.errors import NexoError
from nexo.lake.catalog import Lake
from nexo.lake.derived import dead_letters
from nexo.lake.progress import FlowProgress, MicroBatchResult, Tracker, now_ms
from nexo.lake.settings import LakeSettings
from nexo.lake.tables import StreamId
from nexo.lake.typed.columns import set_permissive, set_schema
from tests.unit.lake.conftest import Filler

SCRIPT = "<script>window.hacked=1</script>"
"""Must never be anything but text."""


def fill(client: nexo.Client) -> None:
    """One of everything."""
    _fill_store(client)
    _fill_pubsub(client)
    _fill_queues(client)
    _fill_streams(client)


def fill_lake(lake_folder: Path) -> None:
    """A lake as pipelines leave it: tables with some commits, one stream in trouble."""
    lake = Lake(LakeSettings(lake_folder))
    tracker = Tracker()
    tracker.pipeline.every_ms = 1_000
    tracker.pipeline.id = "etl-1-4711-7dab2f"
    for stream, batches, behind in (("orders", (120, 90, 75), 12), ("clicks", (40, 11), 0)):
        filler = Filler(lake, stream)
        if stream == "orders":
            wanted = {"n": "long", "price": "decimal(10, 2)", "items": "list<struct<sku: string>>"}
            filler.table = set_permissive(set_schema(filler.table, wanted), True)
        for number, size in enumerate(batches):
            filler.append([b'{"n": %d}' % n for n in range(size)])
            done = number == len(batches) - 1 and not behind
            tracker.looked(stream, lake.get(stream), behind + size, now_ms())
            batch = MicroBatchResult(stream, size, 1, 0.31)
            tracker.took(lake.get(stream), batch, complete=done)
    filler.table = set_schema(filler.table, {"n": "long"})
    filler.append([b'{"n": "%s"}' % SCRIPT.encode(), b"no JSON"])
    planned = dead_letters.plan(lake, StreamId("clicks", 1))
    assert planned is not None
    dead_letters.finish(*planned, [dead_letters.run(step) for step in planned[1]])
    tracker.of("clicks").dead_letters = 2
    tracker.failed(SCRIPT, ["orders"])
    tracker.pipeline.error = "no space left on device"
    view = "materialized view"
    tracker.pipeline.flows = [
        FlowProgress(flow="clean_orders", target="clean_orders", kind="streaming table",
                     reads=["orders"], state="running", place="silver.sql:2", batches=3, rows=480,
                     last_rows=12, last_ms=840, records=480, files=3, committed_ms=now_ms()),
        FlowProgress(flow="big_orders", target="big_orders", kind="streaming table",
                     reads=["clean_orders"], state="failed", error=SCRIPT, error_ms=now_ms()),
        FlowProgress(flow="revenue", target="revenue", kind=view, reads=["clean_orders"],
                     state="idle", batches=3, rows=42, records=14),
        FlowProgress(flow="top", target="top", kind=view, reads=["big_orders"], state="held"),
    ]  # fmt: skip
    tracker.save(lake_folder)


def _fill_store(client: nexo.Client) -> None:
    client.store.mset({f"session:{n:04}": {"user": n, "cart": ["a", "b"]} for n in range(240)})
    client.store.set("config/limits", {"max": 10**18 + 1, "on": True, "names": ["x", None]})
    client.store.set("greeting", "hello")
    client.store.set("blob", bytes(range(64)), ttl=3600)
    client.store.set(f"xss/{SCRIPT}", {"html": SCRIPT})
    client.store.map("user:7").set_many({"name": "Ada", "mail": SCRIPT})
    client.store.list("recent").push(*[f"item {n}" for n in range(5)])


def _fill_pubsub(client: nexo.Client) -> None:
    for room in ("kitchen", "bath", "hall"):
        client.pubsub.publish(f"home/{room}/temperature", 21.5, retain=True)
    client.pubsub.publish(f"xss/{SCRIPT}", SCRIPT, retain=True)


def _fill_queues(client: nexo.Client) -> None:
    emails = client.queue("emails").create(max_retries=0)
    emails.push_many([{"to": f"user{n}@example.com"} for n in range(60)])
    for number, job in enumerate(emails.pop(6)):
        job.nack(SCRIPT if number == 0 else "550 mailbox unavailable")
    emails.push({"to": "later@example.com"}, delay=3600)
    emails.cron.set("digest", "0 7 * * *", {"kind": "digest"})
    client.queue("thumbnails").create().push_many([{"image": n} for n in range(12)])
    client.queue("payments/eu").create(visibility_timeout=600).push_many(["7 EUR", "9 EUR", SCRIPT])


def _fill_streams(client: nexo.Client) -> None:
    orders = client.stream("orders").create(partitions=3)
    keys = [f"customer-{n % 7}" for n in range(400)]
    orders.publish_many([{"order": n, "total": n * 1.5} for n in range(400)], keys=keys)
    clicks = client.stream("clicks").create()
    clicks.publish(SCRIPT, key=SCRIPT, headers={"html": SCRIPT})
    clicks.publish_many([f"click {n}" for n in range(50)])
    with clicks.consume("analytics", max_deliveries=1, wait=0.2) as consumer:
        for _, record in zip(range(3), consumer, strict=False):
            record.nack(reason=SCRIPT)
    with orders.consume("billing", wait=0.2) as consumer:
        for _, record in zip(range(40), consumer, strict=False):
            record.ack()


@contextmanager
def traffic(url: str) -> Iterator[None]:
    """Some requests per second to every broker, and two jobs in work, until the end."""
    stop = threading.Event()
    threads = [threading.Thread(target=_work, args=(url, stop, work)) for work in _WORK]
    for thread in threads:
        thread.start()
    try:
        with nexo.connect(f"{url}?client=card-terminal-3") as terminal:
            terminal.queue("payments/eu").pop(2, lease=600)
            yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def _work(url: str, stop: threading.Event, work: Callable[[nexo.Client, int], None]) -> None:
    with nexo.connect(f"{url}?client=traffic") as client:
        turn = 0
        while not stop.wait(0.05):
            turn += 1
            with suppress(NexoError):
                work(client, turn)


def _store(client: nexo.Client, turn: int) -> None:
    for n in range(10 + turn % 40):
        client.store.set(f"session:{n:04}", {"seen": turn})
        client.store.get(f"session:{n + 3:04}")


def _pubsub(client: nexo.Client, turn: int) -> None:
    client.pubsub.publish_many("home/hall/motion", [turn] * (5 + turn % 12))


def _queue(client: nexo.Client, turn: int) -> None:
    queue = client.queue("thumbnails")
    queue.push_many([{"image": turn}] * (4 + turn % 9))
    for job in queue.pop(12):
        job.ack()


def _stream(client: nexo.Client, turn: int) -> None:
    client.stream("orders").publish_many([{"order": turn}] * (10 + turn % 30))


def _read(client: nexo.Client, turn: int) -> None:
    with (
        client.stream("orders").consume("shipping", wait=0.2) as consumer,
        client.pubsub.subscribe("home/#"),
    ):
        for _ in range(40):
            for record in consumer.fetch():
                record.ack()


_WORK = (_store, _pubsub, _queue, _stream, _read)
