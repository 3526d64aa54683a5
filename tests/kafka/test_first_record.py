"""What lets an idempotent producer of librdkafka begin at once (SPEC L2)."""

from __future__ import annotations

import pytest

from nexo.dialects.kafka.format.apis import ApiKey
from nexo.dialects.kafka.format.codec import KafkaMessage
from nexo.dialects.kafka.format.errors import Error
from nexo.dialects.kafka.second_look import AGAIN_MS, MOST, SecondLooks, waits_for_its_id
from tests.kafka.batches import batch, errors, produced
from tests.kafka.session import Door, Line
from tests.unit.brokers.stream.desk import Desk

LIBRDKAFKA = ("confluent-kafka-python", "2.16.1-rdkafka-2.16.0")
JAVA = ("apache-kafka-java", "4.3.0")
TOPIC = "calls"


@pytest.fixture
def door() -> Door:
    desk = Desk()
    desk.client().make(TOPIC)
    return Door(desk)


def connected(door: Door, software: tuple[str, str] = LIBRDKAFKA) -> Line:
    """A connection of a client that has said what it is."""
    line = Line(door)
    line.ask(ApiKey.API_VERSIONS, 3, {"name": software[0], "version": software[1]})
    return line


def told(line: Line, topic: str = TOPIC, *, creates: bool = True) -> KafkaMessage:
    """What the server says of a topic."""
    asked = {"topics": [{"id": None, "name": topic}], "auto_create": creates}
    (row,) = line.ask(ApiKey.METADATA, 9, asked | {"cluster_operations": False})["topics"]
    return dict(row)


def error_of(row: KafkaMessage) -> tuple[int, int]:
    """A topic's error, and how many of its partitions are known."""
    return row["error"], len(row["partitions"])


def test_a_starting_producer_is_told_of_leaders_on_its_second_connection(door: Door) -> None:
    first = connected(door)
    assert error_of(told(first)) == (Error.LEADER_NOT_AVAILABLE, 0)
    assert error_of(told(first)) == (Error.NONE, 1)
    assert error_of(told(connected(door))) == (Error.NONE, 1)
    assert error_of(told(connected(door)))[0] == Error.LEADER_NOT_AVAILABLE, "the next start"


def test_who_comes_back_late_begins_anew(door: Door) -> None:
    told(connected(door))
    door.desk.runtime.time.now += AGAIN_MS
    assert error_of(told(connected(door)))[0] == Error.LEADER_NOT_AVAILABLE


@pytest.mark.parametrize(
    "software", [JAVA, ("librdkafka", "2.9.0"), ("librdkafka", "x.y"), ("", "")]
)
def test_other_clients_are_told_at_once(door: Door, software: tuple[str, str]) -> None:
    assert error_of(told(connected(door, software))) == (Error.NONE, 1)


def test_consumers_are_told_at_once(door: Door) -> None:
    assert error_of(told(connected(door), creates=False)) == (Error.NONE, 1)


def test_a_new_topic_is_created_at_the_first_look(door: Door) -> None:
    assert error_of(told(connected(door), "new"))[0] == Error.LEADER_NOT_AVAILABLE
    assert error_of(told(connected(door), "new", creates=False))[0] == Error.NONE


def test_an_error_of_the_topic_is_told_at_once(door: Door) -> None:
    assert error_of(told(connected(door), "no/topic"))[0] == Error.INVALID_TOPIC


def test_a_producer_without_an_id_is_asked_to_look_twice_once_only(door: Door) -> None:
    told(connected(door))
    second = connected(door)
    told(second)
    assert errors(second.ask(ApiKey.PRODUCE, 8, produced(TOPIC, batch(b"v")))) == [Error.NONE]
    assert error_of(told(connected(door))) == (Error.NONE, 1)


def test_a_producer_that_has_become_idempotent_looks_twice_again() -> None:
    looks = SecondLooks()
    looks.produced("a", "c", -1)
    assert not looks.is_due("a", "c", 1)
    looks.produced("a", "c", 7)
    assert looks.is_due("a", "c", 2)
    assert looks.is_due("b", "c", 2), "another address"


def test_of_two_that_are_called_the_same_the_idempotent_one_does_not_wait() -> None:
    """All that choose no name are called `rdkafka`."""
    looks = SecondLooks()
    looks.produced("a", "rdkafka", 7)
    looks.produced("a", "rdkafka", -1)
    assert looks.is_due("a", "rdkafka", 1)


def test_who_produces_has_started_whichever_way_it_learnt_of_leaders() -> None:
    looks = SecondLooks()
    assert looks.is_due("a", "c", 1)
    looks.produced("a", "c", 7)
    assert looks.is_due("a", "c", 2), "the next start is not taken for its second connection"


def test_few_starting_clients_are_remembered() -> None:
    looks = SecondLooks()
    for number in range(MOST + 1):
        assert looks.is_due("a", f"client {number}", 1)
    assert looks.is_due("a", "client 0", 1), "forgotten"
    assert not looks.is_due("a", f"client {MOST}", 1)


@pytest.mark.parametrize(
    ("software", "waits"),
    [
        (("librdkafka", "2.10.0"), True),
        (("librdkafka", "v2.16.0"), True),
        (("rdkafka-ruby", "0.20.0-librdkafka-2.8.0"), False),
        (("confluent-kafka-dotnet", "2.11.0-rdkafka-2.11.0"), True),
        (("librdkafka", "3.0.0"), True),
        (("sarama", "2.16.0"), False),
    ],
)
def test_librdkafka_is_known_by_its_version(software: tuple[str, str], *, waits: bool) -> None:
    assert waits_for_its_id(*software) == waits
