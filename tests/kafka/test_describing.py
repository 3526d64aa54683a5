"""Requests of tools that only look: producers, transactions, partitions, the controller."""

from __future__ import annotations

import pytest

from nexo.access.grants import parse_grant
from nexo.access.users import User
from nexo.dialects.kafka.format.apis import ApiKey
from nexo.dialects.kafka.format.codec import KafkaMessage
from nexo.dialects.kafka.format.errors import Error
from tests.kafka.batches import batch, produced
from tests.kafka.session import Door, Line
from tests.kafka.transactional import TransactionalClient
from tests.unit.brokers.stream.desk import Desk

TOPIC = "t"
NOBODY = User("nobody")


@pytest.fixture
def desk() -> Desk:
    desk = Desk()
    desk.client().make(TOPIC, partitions=3)
    return desk


def producing(line: Line, desk: Desk) -> tuple[TransactionalClient, tuple[int, int]]:
    """A producer with a record in an open transaction."""
    client = TransactionalClient(line.ask, desk.after, TOPIC)
    _, producer = client.init()
    assert client.add_partitions(producer) == "NONE"
    assert client.produce(producer) == "NONE"
    return client, producer


def test_producers_and_their_transactions_are_described(desk: Desk) -> None:
    line = Line(desk)
    line.ask(ApiKey.PRODUCE, 8, produced(TOPIC, batch(b"before")))
    client, (producer, epoch) = producing(line, desk)

    def active() -> list[tuple[int, ...]]:
        topics = [{"name": TOPIC, "partitions": [0]}]
        found = line.ask(ApiKey.DESCRIBE_PRODUCERS, 0, {"topics": topics})
        names = ("producer_id", "epoch", "last_sequence", "current_start")
        rows = found["topics"][0]["partitions"][0]["active"]
        return [tuple(row[name] for name in names) for row in rows]

    def described() -> KafkaMessage:
        answer = line.ask(ApiKey.DESCRIBE_TRANSACTIONS, 0, {"ids": [TOPIC]})
        found: KafkaMessage = answer["states"][0]
        assert (found["producer_id"], found["epoch"]) == (producer, epoch)
        return found

    assert active() == [(producer, epoch, 0, 1)]
    open_one = described()
    assert (open_one["state"], open_one["timeout_ms"]) == ("Ongoing", 60_000)
    assert open_one["start_ms"] == desk.runtime.time.now
    assert open_one["topics"] == [{"name": TOPIC, "partitions": [0]}]
    client.end((producer, epoch))
    assert active() == [(producer, epoch, 0, -1)]
    assert (described()["state"], described()["start_ms"]) == ("CompleteCommit", -1)
    assert described()["topics"] == []


def listed(line: Line, **filters: object) -> tuple[list[str], list[tuple[str, str]]]:
    asked = {"states": [], "producer_ids": [], "duration_ms": -1} | filters
    found = line.ask(ApiKey.LIST_TRANSACTIONS, 1, asked)
    return found["unknown"], [(row["transactional_id"], row["state"]) for row in found["states"]]


def test_transactions_are_listed_by_state_producer_and_age(desk: Desk) -> None:
    line = Line(desk)
    _, (producer, _) = producing(line, desk)
    mine = [(TOPIC, "Ongoing")]
    assert listed(line) == ([], mine)
    assert listed(line, states=["Ongoing", "Strange"]) == (["Strange"], mine)
    assert listed(line, states=["Empty"]) == ([], [])
    assert listed(line, producer_ids=[producer]) == ([], mine)
    assert listed(line, producer_ids=[producer + 1]) == ([], [])
    assert listed(line, duration_ms=5_000) == ([], [])
    desk.after(6_000)
    assert listed(line, duration_ms=5_000) == ([], mine)


def test_transactions_of_others_are_not_there(desk: Desk) -> None:
    door = Door(desk)
    producing(Line(door, User("me", grants=(parse_grant("stream:*:t"),))), desk)
    other = Line(door, User("other", grants=(parse_grant("stream:*:t"),)))
    assert listed(other) == ([], [])
    found = other.ask(ApiKey.DESCRIBE_TRANSACTIONS, 0, {"ids": [TOPIC, "unknown"]})["states"]
    assert [row["error"] for row in found] == [Error.TRANSACTIONAL_ID_NOT_FOUND] * 2


def pages(line: Line, limit: int, *topics: str) -> list[list[tuple[str, list[int]]]]:
    found, cursor = [], None
    while True:
        asked = {"topics": [{"name": each} for each in topics], "limit": limit, "cursor": cursor}
        answer = line.ask(ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, asked)
        found.append(
            [(row["name"], [p["partition"] for p in row["partitions"]]) for row in answer["topics"]]
        )
        cursor = answer["next_cursor"]
        if cursor is None:
            return found


def test_partitions_of_topics_are_described_by_page(desk: Desk) -> None:
    desk.client().make("u", partitions=2)
    line = Line(desk)
    assert pages(line, 100) == [[("t", [0, 1, 2]), ("u", [0, 1])]]
    assert pages(line, 2) == [[("t", [0, 1])], [("t", [2]), ("u", [0])], [("u", [1])]]
    assert pages(line, 3) == [[("t", [0, 1, 2])], [("u", [0, 1])]]
    assert pages(line, 0, "u", "gone") == [[("gone", []), ("u", [0])], [("u", [1])]]


def test_partitions_have_a_size(desk: Desk) -> None:
    line = Line(desk)
    line.ask(ApiKey.PRODUCE, 8, produced(TOPIC, batch(b"v" * 1_000)))
    (found,) = line.ask(ApiKey.DESCRIBE_LOG_DIRS, 4, {"topics": None})["results"]
    sizes = [part["size"] for part in found["topics"][0]["partitions"]]
    assert sizes[0] > 1_000
    assert sizes[1:] == [0, 0]
    asked = {"topics": [{"name": TOPIC, "partitions": [1, 7]}, {"name": "x", "partitions": [0]}]}
    (found,) = line.ask(ApiKey.DESCRIBE_LOG_DIRS, 4, asked)["results"]
    assert [part["partition"] for part in found["topics"][0]["partitions"]] == [1]


def test_one_broker_leads_and_moves_nothing(desk: Desk) -> None:
    line = Line(desk)
    rows = [{"name": TOPIC, "partitions": [0, 5]}]
    moved = line.ask(ApiKey.LIST_PARTITION_REASSIGNMENTS, 0, {"topics": rows, "timeout_ms": 1})
    assert (moved["error"], moved["topics"]) == (0, [])
    elected = line.ask(ApiKey.ELECT_LEADERS, 1, {"topics": rows, "timeout_ms": 1, "election": 0})
    assert [row["error"] for row in elected["results"][0]["partitions"]] == [
        Error.ELECTION_NOT_NEEDED, Error.UNKNOWN_TOPIC_OR_PARTITION,
    ]  # fmt: skip
    asked = {"topics": [{"name": "__cluster_metadata", "partitions": [{"partition": 0}]}]}
    quorum = line.ask(ApiKey.DESCRIBE_QUORUM, 1, asked)["topics"][0]["partitions"][0]
    assert (quorum["leader"], [voter["id"] for voter in quorum["voters"]]) == (0, [0])
    second = line.ask(ApiKey.DESCRIBE_QUORUM, 2, asked)
    assert (second["message"], second["topics"][0]["partitions"][0]["message"]) == (None, None)
    assert second["nodes"][0]["listeners"][0]["host"] == "127.0.0.1"


def test_the_broker_says_where_it_listens(desk: Desk) -> None:
    asked = {"resources": [{"type": 4, "name": "0", "keys": ["advertised.listeners"]}]}
    answer = Line(desk).ask(ApiKey.DESCRIBE_CONFIGS, 1, asked | {"synonyms": False})
    (row,) = answer["results"][0]["configs"]
    assert (row["value"], row["read_only"]) == ("PLAINTEXT://127.0.0.1:9", True)


def test_what_clients_cannot_change_says_so(desk: Desk) -> None:
    line = Line(desk)
    asked = {"updates": [{"feature": "metadata.version", "level": 1, "kind": 1}], "timeout_ms": 1}
    found = line.ask(ApiKey.UPDATE_FEATURES, 1, asked)
    assert (found["error"], found["results"][0]["error"]) == (Error.FEATURE_UPDATE_FAILED,) * 2


def test_what_has_configurations_is_listed(desk: Desk) -> None:
    line = Line(desk)
    every = line.ask(ApiKey.LIST_CONFIG_RESOURCES, 1, {"kinds": []})["resources"]
    assert {"name": "0", "type": 4} in every
    topics = line.ask(ApiKey.LIST_CONFIG_RESOURCES, 1, {"kinds": [2]})["resources"]
    assert topics == [row for row in every if row["type"] == 2] != []
    assert line.ask(ApiKey.LIST_CONFIG_RESOURCES, 0, {})["resources"] == []


def test_access_control_lists_are_as_on_a_broker_without_an_authorizer(desk: Desk) -> None:
    line = Line(desk)
    acl: KafkaMessage = {
        "resource_type": 2, "resource_name": "t", "pattern_type": 3, "principal": "User:one",
        "host": "*", "operation": 1, "permission": 1,
    }  # fmt: skip
    for version in (1, 3):
        assert line.ask(ApiKey.DESCRIBE_ACLS, version, acl)["error"] == Error.SECURITY_DISABLED
        made = line.ask(ApiKey.CREATE_ACLS, version, {"creations": [acl, acl]})
        gone = line.ask(ApiKey.DELETE_ACLS, version, {"filters": [acl]})
        rows = made["results"] + gone["results"]
        assert [row["error"] for row in rows] == [Error.SECURITY_DISABLED] * 3


@pytest.mark.parametrize(
    ("key", "version"),
    [
        (ApiKey.DESCRIBE_LOG_DIRS, 4),
        (ApiKey.LIST_PARTITION_REASSIGNMENTS, 0),
        (ApiKey.ELECT_LEADERS, 1),
        (ApiKey.DESCRIBE_QUORUM, 0),
        (ApiKey.LIST_CONFIG_RESOURCES, 1),
        (ApiKey.UPDATE_FEATURES, 0),
    ],
)
def test_who_may_use_no_stream_learns_nothing_of_the_broker(
    desk: Desk, key: ApiKey, version: int
) -> None:
    asked: KafkaMessage = {"topics": [], "timeout_ms": 1, "updates": [], "kinds": []}
    found = Line(Door(desk), NOBODY).ask(key, version, asked)
    assert found["error"] == Error.CLUSTER_AUTHORIZATION_FAILED
