"""Requests that name very many things are run in steps, between which others are served (K3)."""

from __future__ import annotations

from typing import Any

import pytest

from nexo.dialects.kafka.format.apis import ApiKey
from nexo.dialects.kafka.format.codec import KafkaMessage
from nexo.dialects.kafka.format.errors import Error
from tests.kafka.session import Door, Line
from tests.manual_runtime import ManualRuntime
from tests.unit.brokers.stream.desk import Desk

TOPIC, MANY = "t", 5_000
RUN_IN_STEPS = MANY // 100
"""Turns; reading and answering alone take fewer."""
NAMES = [f"n{number}" for number in range(MANY)]


def partitions(**row: Any) -> list[KafkaMessage]:
    return [{"name": TOPIC, "partitions": [{"partition": 0, "leader_epoch": -1, **row}] * MANY}]


INDEXES = [{"name": TOPIC, "partitions": [0] * MANY}]

LONG: dict[ApiKey, tuple[int, KafkaMessage, str]] = {
    ApiKey.METADATA: (9, {"topics": [{"name": name} for name in NAMES]}, "topics"),
    ApiKey.LIST_OFFSETS: (
        6, {"replica_id": -1, "topics": partitions(timestamp=-1)}, "topics",
    ),
    ApiKey.FETCH: (
        12, {"session_id": 0, "topics": partitions(offset=0, max_bytes=9), "max_bytes": 99},
        "topics",
    ),
    ApiKey.OFFSET_COMMIT: (
        8, {"group": "g", "generation": -1, "topics": partitions(offset=1, metadata="")}, "topics",
    ),
    ApiKey.DESCRIBE_CONFIGS: (
        4, {"resources": [{"type": 2, "name": name, "keys": None} for name in NAMES]}, "results",
    ),
    ApiKey.DESCRIBE_GROUPS: (5, {"groups": NAMES}, "groups"),
    ApiKey.CREATE_TOPICS: (
        5, {"topics": [{"name": f"!{name}"} for name in NAMES]}, "topics",
    ),
    ApiKey.DELETE_RECORDS: (2, {"topics": partitions(offset=0)}, "topics"),
    ApiKey.PRODUCE: (
        9, {"acks": -1, "topics": [{"name": TOPIC, "partitions": [{"index": 0}] * MANY}]}, "topics",
    ),
    ApiKey.FIND_COORDINATOR: (4, {"keys": NAMES}, "coordinators"),
    ApiKey.OFFSET_FETCH: (8, {"groups": [{"group": name} for name in NAMES]}, "groups"),
    ApiKey.CONSUMER_GROUP_DESCRIBE: (0, {"groups": NAMES}, "groups"),
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: (
        0, {"topics": [{"name": name} for name in NAMES], "limit": 9, "cursor": None}, "topics",
    ),
    ApiKey.DESCRIBE_PRODUCERS: (0, {"topics": INDEXES}, "topics"),
    ApiKey.DESCRIBE_TRANSACTIONS: (0, {"ids": NAMES}, "states"),
    ApiKey.ELECT_LEADERS: (2, {"election": 0, "topics": INDEXES}, "results"),
    ApiKey.DESCRIBE_QUORUM: (2, {"topics": partitions()}, "topics"),
}  # fmt: skip


@pytest.fixture
def desk() -> Desk:
    desk = Desk()
    desk.client().make(TOPIC)
    return desk


@pytest.mark.parametrize("key", LONG)
def test_others_are_served_meanwhile(desk: Desk, key: ApiKey) -> None:
    door = Door(desk)
    slow, quick = Line(door), Line(door)
    version, asked, rows = LONG[key]
    slow.send_only(key, version, asked)
    slow.send_only(ApiKey.API_VERSIONS, 0, {})
    assert not slow.answers()
    quick.send_only(ApiKey.API_VERSIONS, 0, {})
    assert quick.answers()
    turns = 0
    while ManualRuntime.end_turn(desk.runtime):
        turns += 1
    assert turns > RUN_IN_STEPS
    found = slow.answers()
    assert list(found) == [0, 1]
    parts = [row.get("partitions") or (row,) for row in found[0][rows]]
    assert sum(len(each) if isinstance(each, list | tuple) else 1 for each in parts) == MANY


def test_one_that_is_malformed_at_its_end_ends_the_connection(desk: Desk) -> None:
    line = Line(desk)
    whole = line.encoded(ApiKey.METADATA, 9, LONG[ApiKey.METADATA][1])
    line.deliver((len(whole) - 9).to_bytes(4, "big") + whole[4:-5])
    assert line.is_closed()
    assert not line.answers()


def test_a_topic_that_is_named_twice_is_described_once(desk: Desk) -> None:
    line = Line(desk)
    topics = line.ask(ApiKey.METADATA, 9, {"topics": [{"name": TOPIC}] * 3})["topics"]
    assert [row["name"] for row in topics] == [TOPIC]
    asked = {"resources": [{"type": 2, "name": TOPIC, "keys": None}] * 2}
    first, again = line.ask(ApiKey.DESCRIBE_CONFIGS, 4, asked)["results"]
    assert (first["error"], again["error"]) == (Error.NONE, Error.INVALID_REQUEST)
    assert first["configs"]
    assert not again["configs"]
