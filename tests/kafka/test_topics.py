"""Topics that Kafka clients create, and their names (SPEC R3, L2)."""

from __future__ import annotations

import time

import pytest

from nexo.access.grants import parse_grant
from nexo.access.users import User
from nexo.batch.kafka import COMPRESSION, parse_kafka
from nexo.batch.kafka_pack import KINDS
from nexo.dialects.kafka.format.apis import ApiKey
from nexo.dialects.kafka.format.errors import Error
from nexo.storage.header import SIZE
from tests.kafka.batches import batch, errors, produced, timed
from tests.kafka.session import Door, Line
from tests.unit.brokers.stream.desk import Desk


def create(line: Line, topic: str, **configs: str) -> int:
    rows = [{"name": name.replace("_", "."), "value": value} for name, value in configs.items()]
    row = {"name": topic, "partitions": 2, "replication": 3, "configs": rows}
    answer = line.ask(ApiKey.CREATE_TOPICS, 4, {"topics": [row], "timeout_ms": 1_000})
    return int(answer["topics"][0]["error"])


def look_up(line: Line, topic: str) -> int:
    answer = line.ask(ApiKey.METADATA, 4, {"topics": [{"name": topic}], "auto_create": True})
    return int(answer["topics"][0]["error"])


def test_topics_keep_all_bytes_for_seven_days_unless_they_say_otherwise() -> None:
    desk = Desk()
    line = Line(desk)
    create(line, "created")
    look_up(line, "found")
    create(line, "small", retention_bytes="1000")
    desk.client().make("native")
    limits = {
        name: desk.client().describe(name).options["retention_bytes"]
        for name in ("created", "found", "small", "native")
    }
    assert limits == {"created": 0, "found": 0, "small": 2_000, "native": 1024**3}
    assert desk.client().describe("created").options["retention_ms"] == 7 * 86_400_000


def test_a_topic_that_wants_to_be_synced_is() -> None:
    desk = Desk()
    assert create(Line(desk), "synced", flush_messages="1") == 0
    assert desk.client().describe("synced").options["persistence"] == "file_sync"
    assert create(Line(desk), "other", message_timestamp_type="LogAppendTime") == (
        Error.INVALID_CONFIG
    )
    assert look_up(Line(desk), "other") == 0  # it was not created before


@pytest.mark.parametrize("kind", ["gzip", "snappy", "lz4", "zstd", "uncompressed"])
def test_a_topic_has_its_batches_in_its_own_compression(kind: str) -> None:
    desk = Desk()
    line = Line(desk)
    assert create(line, "packed", compression_type=kind) == 0
    value = b"v" * 1_000
    asked = produced("packed", batch(value, compression=1), batch(value, compression=4))
    assert errors(line.ask(ApiKey.PRODUCE, 8, asked)) == [0, 0]
    stored = desk.service.core.engine.streams.get("packed")
    for index in (0, 1):
        ((_, entry),) = stored.partition(index).read(0, 10_000, as_stored=True)
        assert parse_kafka(entry[SIZE:]).attributes & COMPRESSION == KINDS[kind]
        assert desk.client().read("packed", partition=index) == [value]


def test_what_was_damaged_on_its_way_is_not_packed_again() -> None:
    """Its new sum would hold."""
    line = Line(Desk())
    assert create(line, "packed", compression_type="gzip") == 0
    damaged = bytearray(batch(b"value"))
    damaged[-2] ^= 1
    answer = line.ask(ApiKey.PRODUCE, 8, produced("packed", bytes(damaged)))
    assert errors(answer) == [Error.CORRUPT_MESSAGE]


def test_what_follows_a_batch_is_refused_whatever_the_compression_of_its_topic() -> None:
    line = Line(Desk())
    for kind in ("gzip", "producer"):
        assert create(line, kind, compression_type=kind) == 0
        answer = line.ask(ApiKey.PRODUCE, 8, produced(kind, batch(b"one") + batch(b"two")))
        assert errors(answer) == [Error.CORRUPT_MESSAGE]


def test_a_compression_that_is_not_known_is_refused() -> None:
    line = Line(Desk())
    assert create(line, "packed", compression_type="brotli") == Error.INVALID_CONFIG
    assert create(line, "packed", compression_type="producer") == 0


@pytest.mark.parametrize("topic", ["", ".", "..", "bad$", "ü", "a/b", "a b", "a" * 250])
def test_names_that_kafka_does_not_know_are_not_created(topic: str) -> None:
    line = Line(Desk())
    assert create(line, topic) == Error.INVALID_TOPIC
    assert look_up(line, topic) == Error.INVALID_TOPIC


def test_a_stream_of_any_name_is_a_topic() -> None:
    desk = Desk()
    desk.client().make("a/b")
    assert look_up(Line(desk), "a/b") == 0


def test_names_that_differ_by_dots_alone_collide() -> None:
    line = Line(Desk())
    assert create(line, "col.x_y") == 0
    assert create(line, "col_x.y") == Error.INVALID_TOPIC
    assert look_up(line, "col.x.y") == Error.INVALID_TOPIC
    assert create(line, "col.x") == 0


def test_a_collision_tells_nothing_of_topics_of_others() -> None:
    door = Door(Desk())
    create(Line(door), "low_secret")
    user = User("low", grants=(parse_grant("stream:*:low.*"),))
    assert create(Line(door, user), "low.secret") == 0


@pytest.mark.parametrize("topic", ["__consumer_offsets", "__transaction_state"])
def test_topics_that_are_kafkas_own_are_not_created(topic: str) -> None:
    line = Line(Desk())
    assert create(line, topic) == Error.INVALID_REQUEST
    assert look_up(line, topic) == Error.UNKNOWN_TOPIC_OR_PARTITION


def test_a_record_from_the_far_future_is_refused() -> None:
    desk = Desk(now=int(time.time() * 1_000))
    desk.client().make("t")
    now = desk.runtime.time.now
    line = Line(desk)

    def sent(at_ms: int) -> list[int]:
        return errors(line.ask(ApiKey.PRODUCE, 8, produced("t", timed(at_ms))))

    assert sent(now + 3_601_000) == [Error.INVALID_TIMESTAMP]
    assert sent(now + 3_599_000) == [0]
    assert sent(0) == [0]
