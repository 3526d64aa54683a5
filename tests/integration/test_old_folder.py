"""A data folder of version 0.1.0 opens with everything in it, again and again (SPEC O7).

``tests/data/write_folder.py`` wrote it, with the sources of that version.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import nexo
from nexo.testing import Server
from nexo.topics import AdminClient, Consumer

OLD = Path(__file__).parent.parent / "data" / "folder-0.1.0"
WAIT_S = 30.0


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    shutil.copytree(OLD, tmp_path / "data")
    running = Server(data_dir=tmp_path / "data", store_snapshot_ms=3_600_000)
    yield running
    running.close()


def test_everything_of_0_1_0_is_there_and_stays_there(server: Server) -> None:
    for restart in range(3):
        server.start()
        with nexo.connect(server.url) as client:
            check_store(client.store)
            check_retained(client.pubsub)
            check_queues(client)
            check_streams(client, server.url)
            client.store.set(f"restart {restart}", restart)
            client.pubsub.publish(f"restart/{restart}", restart, retain=True)
        if restart == 1:
            server.crash()
        else:
            server.stop()


def check_store(store: Any) -> None:
    plain = {
        "text": "Grüße", "raw": b"\x00\xff", "json": {"nested": [1, 2.5, None, True]},
        "empty": "", "number": 42, "lasting": "a",
    }  # fmt: skip
    assert {key: store.get(key) for key in plain} == plain
    assert (store.get("nothing", default="absent"), store.get("late")) == (None, None)
    assert store.ttl("lasting") > 365 * 86_400
    assert store.map("session").all() == {"user": "ada", "visits": 3}
    assert store.list("recent").range() == ["a", b"b", 3]
    assert sorted(store.set_("tags").members()) == ["x", "y"]


def check_retained(pubsub: Any) -> None:
    expected: dict[str, object] = {
        f"plant/{number}/state": {"on": number % 2 == 0} for number in range(2, 20)
    }
    expected |= {
        "plant/0/state": "changed", "plant/late": ["late"],
        "plant/text": "hello", "plant/raw": b"\x01\x02",
    }  # fmt: skip
    with pubsub.subscribe("plant/#") as subscription:
        found = [subscription.get(WAIT_S) for _ in expected]
    assert {message.topic: message.value for message in found} == expected
    assert all(message.timestamp_ms > 1_700_000_000_000 for message in found)
    listed = {row.topic: row for row in pubsub.retained("plant/#")}
    assert set(listed) == set(expected)
    assert listed["plant/text"].expires_ms is not None
    assert listed["plant/late"].expires_ms is None


def check_queues(client: nexo.Client) -> None:
    jobs = client.queue("jobs")
    waiting = [{"job": number} for number in range(1, 10)]
    assert [job.value for job in jobs.peek()] == ["after", *waiting]
    assert [job.value for job in jobs.scheduled.list()] == ["later"]
    (letter,) = jobs.dlq.peek()
    assert (letter.value, letter.cause, letter.reason) == ("urgent", "nack", "it burnt")
    assert [job.value for job in client.queue("quick").peek()] == [b"a", "b", {"c": 3}, "d"]
    (cron,) = client.queue("yearly").cron.list()
    assert (cron.name, cron.cron) == ("new-year", "0 0 1 1 *")


def check_streams(client: nexo.Client, url: str) -> None:
    events = client.stream("events")
    assert [record.value["n"] for record in events.read()] == list(range(55))
    assert events.group("shared").lag() == 49
    with AdminClient(server=url) as admin:
        info = admin.describe_topic("lanes")
    assert sum(part.next_offset for part in info.partitions) == 9
    lanes = client.stream("lanes")
    records = [one for part in range(3) for one in lanes.read(part)]
    assert sorted(record.headers["trace"] for record in records) == [str(n) for n in range(9)]
    with Consumer("lanes", "ordered", server=url, auto_commit=False) as consumer:
        assert consumer.poll(0.2) is None  # all was committed
