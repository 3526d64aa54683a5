"""Topics by id: Metadata 10, Fetch 13, CreateTopics 7, DeleteTopics 6 (SPEC L2)."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest

import nexo
from nexo.dialects.kafka.format.apis import ApiKey
from nexo.dialects.kafka.format.codec import KafkaMessage
from nexo.dialects.kafka.format.errors import Error
from nexo.dialects.kafka.request import NO_TOPIC_ID
from tests.kafka.asker import Asker
from tests.kafka.ledger import node_modules, program, shows

SCRIPT = Path(__file__).parent / "platformatic.mjs"


@pytest.fixture
def asker(bootstrap: str) -> Iterator[Asker]:
    asker = Asker(bootstrap)
    yield asker
    asker.close()


def create(asker: Asker, topic: str, *, only_check: bool = False) -> KafkaMessage:
    asked = {
        "topics": [{"name": topic, "partitions": 2, "replication": 1}],
        "timeout_ms": 10_000,
        "validate_only": only_check,
    }
    (row,) = asker.ask(ApiKey.CREATE_TOPICS, 7, asked)["topics"]
    return dict(row)


def described(asker: Asker, **by: Any) -> KafkaMessage:
    (row,) = asker.ask(ApiKey.METADATA, 12, {"topics": [by], "auto_create": False})["topics"]
    return dict(row)


def fetch(asker: Asker, version: int, topic: UUID, partition: int = 0) -> KafkaMessage:
    part = {"partition": partition, "offset": 0, "max_bytes": 1_000_000}
    asked = {
        "replica_id": -1, "max_wait_ms": 0, "min_bytes": 0, "max_bytes": 1_000_000,
        "topics": [{"id": topic, "partitions": [part]}], "rack": "",
    }  # fmt: skip
    ((row,)) = asker.ask(ApiKey.FETCH, version, asked)["topics"]
    assert row["id"] == topic
    return dict(row["partitions"][0])


def delete(asker: Asker, **by: Any) -> KafkaMessage:
    asked = {"named": [{"name": None, "id": NO_TOPIC_ID} | by], "timeout_ms": 10_000}
    (row,) = asker.ask(ApiKey.DELETE_TOPICS, 6, asked)["topics"]
    return dict(row)


def test_a_topic_has_an_id_of_its_own_each_time_it_is_created(
    asker: Asker, topic: str, url: str
) -> None:
    assert create(asker, topic, only_check=True)["id"] == NO_TOPIC_ID
    first = create(asker, topic)["id"]
    assert described(asker, name=topic)["id"] == first
    assert described(asker, name=None, id=first)["name"] == topic
    assert delete(asker, id=first) == {"name": topic, "id": first, "error": 0, "message": None}
    second = create(asker, topic)["id"]
    assert len({first, second, NO_TOPIC_ID}) == 3
    assert described(asker, name=None, id=first)["error"] == Error.UNKNOWN_TOPIC_ID
    with nexo.connect(url) as client:
        client.stream(topic).publish("record", partition=0)
    assert b"record" in bytes(fetch(asker, 13, second)["records"])
    assert fetch(asker, 13, first)["error"] == Error.UNKNOWN_TOPIC_ID


@pytest.mark.parametrize("version", [13, 14, 15, 16, 17])
def test_records_are_fetched_by_id_in_every_version(
    asker: Asker, topic: str, url: str, version: int
) -> None:
    found = create(asker, topic)["id"]
    with nexo.connect(url) as client:
        client.stream(topic).publish("record", partition=1)
    row = fetch(asker, version, found, 1)
    assert (row["error"], row["partition"], row["high"]) == (0, 1, 1)
    assert b"record" in bytes(row["records"])
    assert fetch(asker, version, found, 2)["error"] == Error.UNKNOWN_TOPIC_OR_PARTITION
    for unknown in (NO_TOPIC_ID, uuid4(), UUID(int=found.int + 1)):
        assert fetch(asker, version, unknown)["error"] == Error.UNKNOWN_TOPIC_ID


def test_a_topic_is_deleted_by_name_or_by_id_not_by_both(asker: Asker, topic: str) -> None:
    found = create(asker, topic)["id"]
    assert delete(asker, id=uuid4())["error"] == Error.UNKNOWN_TOPIC_ID
    assert delete(asker, name=topic, id=found)["error"] == Error.INVALID_REQUEST
    assert delete(asker, name=topic)["error"] == 0
    assert delete(asker, name=topic)["error"] == Error.UNKNOWN_TOPIC_OR_PARTITION
    assert delete(asker, id=found)["error"] == Error.UNKNOWN_TOPIC_ID


@shows("@platformatic/kafka", "administration, produce, groups: topics by id")
def test_platformatic_kafka_creates_consumes_and_deletes(bootstrap: str, topic: str) -> None:
    node, modules = program("node"), node_modules("@platformatic/kafka")
    found = subprocess.run(
        [node, str(SCRIPT), bootstrap, topic, str(modules)],
        capture_output=True, text=True, timeout=90, check=False,
    )  # fmt: skip
    assert found.returncode == 0, found.stderr[-3000:]
    assert json.loads(found.stdout.splitlines()[-1]) == {
        "created": [topic, 2],
        "values": [f"v{n}" for n in range(10)],
        "left": False,
    }
