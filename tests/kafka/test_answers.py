"""Answers as Kafka gives them: offsets, groups, permissions, the cluster (SPEC L2)."""

from __future__ import annotations

from typing import Any

import pytest

from nexo.access.grants import parse_grant
from nexo.access.users import User
from nexo.brokers.stream.groups.limits import MAX_MEMBER_BYTES
from nexo.dialects.kafka.describing.operations import KafkaOperation
from nexo.dialects.kafka.format.apis import ApiKey
from nexo.dialects.kafka.format.codec import KafkaMessage
from nexo.dialects.kafka.format.errors import Error
from tests.kafka.batches import batch, keyed, produced
from tests.kafka.session import Door, Line
from tests.kafka.transactional import TransactionalClient
from tests.unit.brokers.stream.desk import Desk

GROUP, TOPIC = "readers", "t"


@pytest.fixture
def desk() -> Desk:
    desk = Desk()
    desk.client().make(TOPIC)
    return desk


def commit(line: Line, offset: int, **more: Any) -> int:
    row = {"partition": 0, "offset": offset, "leader_epoch": 7, "metadata": "note"}
    asked = {
        "group": GROUP, "generation": -1, "member": "",
        "topics": [{"name": TOPIC, "partitions": [row]}],
    }  # fmt: skip
    answer = line.ask(ApiKey.OFFSET_COMMIT, 6, asked | more)
    return int(answer["topics"][0]["partitions"][0]["error"])


def committed(line: Line) -> KafkaMessage:
    topics = [{"name": TOPIC, "partitions": [0]}]
    answer = line.ask(ApiKey.OFFSET_FETCH, 5, {"group": GROUP, "topics": topics})
    found: KafkaMessage = answer["topics"][0]["partitions"][0]
    return found


# -- offsets -----------------------------------------------------------------------------


@pytest.mark.parametrize("offset", [0, 5, 1_000, 2**62, 2**63 - 1])
def test_any_offset_is_stored_with_its_epoch(desk: Desk, offset: int) -> None:
    assert commit(Line(desk), offset) == 0
    for door in (desk, desk.crash(), desk.restart()):
        found = committed(Line(door))
        assert (found["offset"], found["leader_epoch"], found["metadata"]) == (offset, 7, "note")


def test_a_transaction_commits_any_offset(desk: Desk) -> None:
    line = Line(desk)
    client = TransactionalClient(line.ask, desk.after, TOPIC)
    _, producer = client.init()
    client.add_offsets(producer)
    row = {"partition": 0, "offset": 500, "leader_epoch": 3, "metadata": ""}
    topics = [{"name": TOPIC, "partitions": [row]}]
    asked = client._mine(producer, topics=topics, group=GROUP, member="")
    answer = line.ask(ApiKey.TXN_OFFSET_COMMIT, 3, asked)
    assert answer["topics"][0]["partitions"][0]["error"] == 0
    assert client.end(producer) == "NONE"
    assert (committed(line)["offset"], committed(line)["leader_epoch"]) == (500, 3)


def test_an_offset_beyond_the_end_wastes_none_after_a_power_loss(desk: Desk) -> None:
    """It says nothing about what clients have seen, so the log goes on where it ended."""
    line = Line(desk)
    line.ask(ApiKey.PRODUCE, 8, produced(TOPIC, batch(b"v")))
    assert commit(line, 2**40) == 0
    engine = desk.service.core.engine
    stream = engine.streams.get(TOPIC)
    assert engine._exposed_end(stream, 0) <= 1
    assert commit(line, 1) == 0
    assert engine._exposed_end(stream, 0) == 1


def test_a_partition_that_is_not_there_has_no_offset(desk: Desk) -> None:
    row = {"partition": 3, "offset": 5, "leader_epoch": 7, "metadata": ""}
    topics = [{"name": TOPIC, "partitions": [row]}]
    assert commit(Line(desk), 0, topics=topics) == Error.UNKNOWN_TOPIC_OR_PARTITION


def test_a_group_that_is_ahead_has_no_lag(desk: Desk) -> None:
    Line(desk).ask(ApiKey.PRODUCE, 8, produced(TOPIC, batch(b"v")))
    assert commit(Line(desk), 1_000) == 0
    (found,) = desk.service.overview.groups(desk.client(), GROUP)
    assert found.lag == 0


# -- groups ------------------------------------------------------------------------------


def join(line: Line, **more: Any) -> KafkaMessage:
    asked = {
        "group": GROUP, "session_ms": 30_000, "rebalance_ms": 30_000, "member": "",
        "protocol_type": "consumer", "protocols": [{"name": "range", "metadata": b""}],
    }  # fmt: skip
    return line.ask(ApiKey.JOIN_GROUP, 3, asked | more)


@pytest.mark.parametrize(("session_ms", "error"), [
    (5_999, Error.INVALID_SESSION_TIMEOUT), (6_000, 0), (1_800_000, 0),
    (1_800_001, Error.INVALID_SESSION_TIMEOUT),
])  # fmt: skip
def test_session_timeouts_have_kafkas_bounds(desk: Desk, session_ms: int, error: int) -> None:
    assert join(Line(desk), session_ms=session_ms)["error"] == error


def test_a_member_gives_its_group_so_many_bytes(desk: Desk) -> None:
    """They are kept in memory."""
    line = Line(desk)
    for size, error in ((MAX_MEMBER_BYTES + 1, Error.INVALID_REQUEST), (MAX_MEMBER_BYTES, 0)):
        found = join(line, protocols=[{"name": "range", "metadata": bytes(size)}])
        assert found["error"] == error
    sync = {
        "group": GROUP, "generation": found["generation"], "member": found["member"],
        "assignments": [{"member": found["member"], "assignment": bytes(MAX_MEMBER_BYTES + 1)}],
    }  # fmt: skip
    assert line.ask(ApiKey.SYNC_GROUP, 3, sync)["error"] == Error.INVALID_REQUEST


def listed(line: Line) -> dict[str, tuple[str, str, str]]:
    groups = line.ask(ApiKey.LIST_GROUPS, 5, {"states": [], "types": []})["groups"]
    return {row["group"]: (row["protocol_type"], row["state"], row["type"]) for row in groups}


def test_groups_without_members_are_listed_as_what_they_were(desk: Desk) -> None:
    line = Line(desk)
    commit(line, 0)
    assert listed(line) == {GROUP: ("", "Empty", "Classic")}
    member = join(line)["member"]
    line.ask(ApiKey.LEAVE_GROUP, 1, {"group": GROUP, "member": member})
    assert listed(line) == {GROUP: ("consumer", "Empty", "Classic")}


def beat(line: Line, member: str, epoch: int, **more: Any) -> KafkaMessage:
    asked = {
        "group": "new", "member": member, "epoch": epoch, "rebalance_ms": 60_000, "topics": None,
        "owned": None, "assignor": None, "instance": None,
    }  # fmt: skip
    return line.ask(ApiKey.CONSUMER_GROUP_HEARTBEAT, 0, asked | more)


def test_members_are_asked_for_a_heartbeat_as_often_as_on_kafka(desk: Desk) -> None:
    """More often while partitions move."""
    line = Line(desk)
    first = beat(line, "a", 0, topics=[TOPIC], owned=[])
    assert first["heartbeat_ms"] == 5_000
    beat(line, "b", 0, topics=[TOPIC], owned=[])
    desk.client().make("u")
    more = beat(line, "b", 2, topics=[TOPIC, "u"])
    assert more["heartbeat_ms"] in (1_000, 5_000)
    assert beat(line, "a", -1)["error"] == 0
    assert beat(line, "b", -1)["error"] == 0
    assert listed(line)["new"] == ("consumer", "Empty", "Consumer")


def subscribed(line: Line, member: str, epoch: int, pattern: str | None) -> KafkaMessage:
    asked = {
        "group": "new", "member": member, "epoch": epoch, "rebalance_ms": 60_000,
        "topics": None, "owned": [] if epoch == 0 else None, "assignor": None, "instance": None,
        "regex": pattern,
    }  # fmt: skip
    return line.ask(ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, asked)


def owned(answer: KafkaMessage) -> int | None:
    """How many partitions a member owns; None if that has not changed."""
    assignment = answer["assignment"]
    return None if assignment is None else sum(len(t["partitions"]) for t in assignment["topics"])


def test_a_member_reads_all_topics_that_match_also_later_ones(desk: Desk) -> None:
    line = Line(desk)
    desk.client().make("eu.a", partitions=2)
    first = subscribed(line, "a", 0, r"eu\..*")
    assert (first["error"], owned(first)) == (0, 2)
    desk.client().make("eu.b", partitions=3)
    desk.client().make("us.b")
    second = subscribed(line, "a", first["epoch"], None)
    assert owned(second) == 5
    (shown,) = line.ask(ApiKey.CONSUMER_GROUP_DESCRIBE, 0, {"groups": ["new"]})["groups"]
    assert shown["members"][0]["regex"] == r"eu\..*"
    third = subscribed(line, "a", second["epoch"], "t")
    assert owned(third) in (0, 1)


def test_a_pattern_finds_only_what_its_user_may_read(desk: Desk) -> None:
    door = Door(desk)
    desk.client().make("low.a")
    line = Line(door, User("low", grants=(parse_grant("stream:*:low*"),)))
    asked = subscribed(line, "a", 0, ".*")
    assert owned(asked) in (1, None)
    found = desk.service.consumers._known["new", "a"].matched[1]
    assert found == {"low.a"}


@pytest.mark.parametrize("pattern", ["(", "(?=x)", "a" * 501])
def test_a_pattern_that_is_none_is_refused(desk: Desk, pattern: str) -> None:
    answer = subscribed(Line(desk), "a", 0, pattern)
    assert answer["error"] == Error.INVALID_REGULAR_EXPRESSION
    assert "pattern" in answer["message"]


# -- records -----------------------------------------------------------------------------


def test_a_record_that_is_refused_is_named() -> None:
    desk = Desk()
    desk.client().make(TOPIC, cleanup="compact")
    answer = Line(desk).ask(ApiKey.PRODUCE, 8, produced(TOPIC, batch(b"v")))
    (row,) = answer["topics"][0]["partitions"]
    assert row["error"] == Error.INVALID_RECORD
    assert [(each["index"], "without a key" in each["message"]) for each in row["errors"]] == [
        (0, True)
    ]


@pytest.mark.parametrize("every", [2, 10, 40])
def test_all_records_that_are_refused_are_named(every: int) -> None:
    """Clients send those that are not again (librdkafka 0011)."""
    desk = Desk()
    desk.client().make(TOPIC, cleanup="compact")
    keys = [None if n // 20 % 2 or n % every == 0 else b"k" for n in range(300)]
    answer = Line(desk).ask(ApiKey.PRODUCE, 8, produced(TOPIC, keyed(*keys)))
    (row,) = answer["topics"][0]["partitions"]
    assert row["error"] == Error.INVALID_RECORD
    assert [each["index"] for each in row["errors"]] == [n for n in range(300) if not keys[n]]


# -- the cluster and permissions ---------------------------------------------------------


def cluster(line: Line, **more: Any) -> KafkaMessage:
    return line.ask(ApiKey.DESCRIBE_CLUSTER, 0, {"operations": True} | more)


def test_each_data_folder_is_a_cluster_of_its_own(desk: Desk) -> None:
    found = cluster(Line(desk))["cluster_id"]
    assert len(found) == 22
    assert cluster(Line(desk.crash()))["cluster_id"] == found
    restarted = desk.restart()
    assert cluster(Line(restarted))["cluster_id"] == found
    assert cluster(Line(restarted.restart()))["cluster_id"] == found
    assert cluster(Line(Desk()))["cluster_id"] != found


def operations(bits: int) -> set[str]:
    return {each.name for each in KafkaOperation if bits >> each & 1}


@pytest.mark.parametrize(
    ("grant", "allowed"),
    [
        ("stream:read:t", {"READ", "DESCRIBE"}),
        ("stream:write:t", {"WRITE", "DESCRIBE"}),
        (
            "stream:*:t",
            {
                "READ", "WRITE", "CREATE", "DELETE", "ALTER", "DESCRIBE", "DESCRIBE_CONFIGS",
                "ALTER_CONFIGS",
            },
        ),
    ],
)  # fmt: skip
def test_who_asks_learns_what_they_may_do(desk: Desk, grant: str, allowed: set[str]) -> None:
    line = Line(Door(desk), User("u", grants=(parse_grant(grant),)))
    asked: KafkaMessage = {"topics": [{"name": TOPIC}], "topic_operations": True}
    topic = line.ask(ApiKey.METADATA, 9, asked)["topics"][0]
    assert operations(topic["operations"]) == allowed
    asked["topic_operations"] = False
    assert line.ask(ApiKey.METADATA, 9, asked)["topics"][0]["operations"] == -(2**31)
    assert operations(cluster(line)["operations"]) == {"CREATE", "DESCRIBE", "IDEMPOTENT_WRITE"}
    nobody = Line(Door(desk), User("nobody"))
    assert operations(cluster(nobody)["operations"]) == set()
