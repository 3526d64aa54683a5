"""Producers are fenced as on Kafka 4.3.1, which gave every answer here (SPEC L4, KIP-360, KIP-890).

``NEXO_TEST_KAFKA=127.0.0.1:9092`` asks a real Kafka as well; `tools/real_kafka.py` starts one.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from typing import TypeAlias

import pytest

from nexo.dialects.kafka.format.apis import ApiKey
from tests.kafka.asker import Asker
from tests.kafka.session import Line
from tests.kafka.transactional import Producer, TransactionalClient
from tests.unit.brokers.stream.desk import Desk

_REAL = os.environ.pop("NEXO_TEST_KAFKA", "")  # servers refuse variables they do not know
OLD, FENCED, NO_TXN = "INVALID_PRODUCER_EPOCH", "PRODUCER_FENCED", "INVALID_TXN_STATE"
ABORTABLE = "TRANSACTION_ABORTABLE"
TOPIC = "t"
UNMAPPED = "INVALID_PRODUCER_ID_MAPPING"

Step: TypeAlias = Callable[[TransactionalClient, Producer], object]


@pytest.fixture(params=["nexo", "kafka"] if _REAL else ["nexo"])
def client(request: pytest.FixtureRequest) -> Iterator[TransactionalClient]:
    name = f"t{time.time_ns()}"
    if request.param == "nexo":
        desk = Desk()
        yield TransactionalClient(Line(desk).ask, desk.after, name)
        return
    asker = Asker(_REAL)
    yield TransactionalClient(asker.ask, lambda ms: time.sleep(ms / 1_000), name)
    asker.close()


AFTER_TIMEOUT: dict[str, tuple[Step, object]] = {
    "produce": (lambda it, who: [it.produce(who, 1, v) for v in (7, 9)], [OLD, OLD]),
    "commit": (lambda it, who: [it.end(who, version=v) for v in (1, 2, 3)], [OLD, FENCED, FENCED]),
    "abort": (lambda it, who: it.end(who, committed=False), FENCED),
    "partitions": (
        lambda it, who: [it.add_partitions(who, v) for v in (1, 2, 3)], [OLD, FENCED, FENCED],
    ),
    "offsets": (
        lambda it, who: [it.add_offsets(who, v) for v in (1, 2, 3)], [OLD, FENCED, FENCED],
    ),
    "offset commit": (lambda it, who: [it.commit_offsets(who, v) for v in (2, 3)], [OLD, OLD]),
    "next epoch": (lambda it, who: it.end((who[0], who[1] + 1)), NO_TXN),
}  # fmt: skip


@pytest.mark.parametrize("asked", AFTER_TIMEOUT)
def test_a_producer_whose_transaction_timed_out_is_fenced(
    client: TransactionalClient, asked: str
) -> None:
    step, answer = AFTER_TIMEOUT[asked]
    assert step(client, client.time_out()) == answer


def test_it_gets_the_next_epoch_and_goes_on(client: TransactionalClient) -> None:
    """It may ask twice, as the first answer may be lost."""
    producer, epoch = old = client.time_out()
    assert client.init(old) == ("NONE", (producer, epoch + 1))
    assert client.init(old) == ("NONE", new := (producer, epoch + 1))
    assert (client.produce(old, 1), client.end(old)) == (OLD, FENCED)
    assert (client.add_partitions(new), client.produce(new), client.end(new)) == ("NONE",) * 3


def test_a_producer_that_starts_anew_fences_the_one_that_timed_out(
    client: TransactionalClient,
) -> None:
    producer, epoch = old = client.time_out()
    assert client.init() == ("NONE", (producer, epoch + 2))
    assert client.init(old) == (FENCED, (-1, -1))


def test_a_producer_without_a_transaction_ends_none(client: TransactionalClient) -> None:
    _, who = client.init()
    found = client.end(who), client.end(who, committed=False), client.produce(who)
    assert found == (NO_TXN,) * 3


def test_an_end_may_be_asked_for_again(client: TransactionalClient) -> None:
    _, who = client.init()
    assert (client.add_partitions(who), client.produce(who)) == ("NONE", "NONE")
    assert (client.end(who), client.end(who)) == ("NONE", "NONE")
    assert client.end(who, committed=False) == NO_TXN


def test_a_producer_goes_on_from_its_own_epoch_alone(client: TransactionalClient) -> None:
    _, (producer, epoch) = client.init((77, 3))  # of an id that nobody knows
    assert epoch == 0
    assert client.init((producer, 0)) == ("NONE", (producer, 1))
    assert client.init((producer, 0)) == ("NONE", (producer, 1))
    assert client.init((producer + 1, 0)) == (FENCED, (-1, -1))
    assert client.end((producer + 1, 0)) == UNMAPPED
    assert client.add_partitions((producer + 1, 0)) == UNMAPPED


def test_a_later_producer_fences_an_earlier_one_in_each_version(
    client: TransactionalClient,
) -> None:
    _, old = client.init()
    client.init()
    for ask in (client.add_partitions, client.add_offsets):
        assert [ask(old, version) for version in (1, 2, 3)] == [OLD, FENCED, FENCED]
    assert [client.init(old, version)[0] for version in (3, 4)] == [OLD, FENCED]
    assert (client.commit_offsets(old), client.produce(old)) == (OLD, OLD)


# -- clients that get the next epoch from each transaction (KIP-890) ----------------------------


def test_the_end_of_each_transaction_gives_the_next_epoch(client: TransactionalClient) -> None:
    """No request opened them; each end may be asked for again."""
    _, first = client.init(version=5)
    producer, epoch = first
    for at, committed in enumerate((True, False, True)):
        who = producer, epoch + at
        assert client.produce(who, version=12) == "NONE"
        for _ in range(2):
            answer = client.move_on(who, committed=committed)
            assert answer == ("NONE", (producer, epoch + at + 1))
        assert client.move_on(who, committed=not committed) == (NO_TXN, (-1, -1))
    assert client.produce(first, 1, 12) == OLD
    assert client.move_on(first) == (FENCED, (-1, -1))


def test_offsets_open_a_transaction_too(client: TransactionalClient) -> None:
    _, who = client.init()
    assert client.commit_offsets(who, 5) == "NONE"
    assert client.move_on(who) == ("NONE", (who[0], who[1] + 1))


def test_what_opens_none_says_so_in_each_version(client: TransactionalClient) -> None:
    _, who = client.init()
    assert client.produce(who, version=12) == "NONE"  # the topic has a leader
    _, who = client.move_on(who, committed=False)
    assert [client.commit_offsets(who, version) for version in (3, 4)] == [NO_TXN, ABORTABLE]
    assert [client.produce(who, 0, version) for version in (9, 11)] == [NO_TXN, ABORTABLE]
    assert client.move_on(who) == (NO_TXN, (-1, -1))


def test_a_transaction_of_nothing_is_rolled_back(client: TransactionalClient) -> None:
    _, who = client.init()
    producer, epoch = who
    for _ in range(2):
        assert client.move_on(who, committed=False) == ("NONE", (producer, epoch + 1))


AFTER_TIMEOUT_V2: dict[str, tuple[Step, object]] = {
    "produce": (lambda it, who: [it.produce(who, 1, v) for v in (11, 12)], [OLD, OLD]),
    "older versions": (lambda it, who: [it.end(who, version=v) for v in (3, 4)], [FENCED, FENCED]),
    "offsets": (lambda it, who: [it.commit_offsets(who, v) for v in (4, 5)], [OLD, OLD]),
    "two later": (
        lambda it, who: [it.produce((who[0], who[1] + 2), 0, 12), it.move_on((who[0], who[1] + 2))],
        [OLD, (FENCED, (-1, -1))],
    ),
}  # fmt: skip


@pytest.mark.parametrize("asked", AFTER_TIMEOUT_V2)
def test_newer_clients_are_fenced_alike(client: TransactionalClient, asked: str) -> None:
    step, answer = AFTER_TIMEOUT_V2[asked]
    assert step(client, client.time_out()) == answer


def test_a_client_that_rolls_back_after_a_timeout_goes_on(client: TransactionalClient) -> None:
    producer, epoch = old = client.time_out()
    assert client.produce(old, 1, 12) == OLD
    for _ in range(2):
        error, new = client.move_on(old, committed=False)
        assert (error, new) == ("NONE", (producer, epoch + 1))
    assert client.init(old, 5) == ("NONE", new)
    assert client.produce(new, 0, 12) == "NONE"
    assert client.move_on(new) == ("NONE", (producer, epoch + 2))


def test_a_producer_that_started_anew_is_not_taken_for_the_one_before(
    client: TransactionalClient,
) -> None:
    _, old = client.init()
    producer, epoch = old
    assert client.produce(old, 0, 12) == "NONE"
    assert client.init(old, 5) == ("NONE", (producer, epoch + 1))
    for committed in (True, False):
        assert client.move_on(old, committed=committed) == (FENCED, (-1, -1))


def test_a_late_commit_is_fenced_so_that_kafka_streams_goes_on() -> None:
    """Kafka says INVALID_TXN_STATE, for which Streams ends. A client's own mistake is that."""
    desk = Desk()
    client = TransactionalClient(Line(desk).ask, desk.after, TOPIC)
    old = client.time_out()
    assert [client.move_on(old)[0] for _ in range(2)] == [FENCED, FENCED]
    _, new = client.move_on(old, committed=False)
    assert client.produce(new, version=12) == "NONE"
    assert client.move_on(new, committed=False)[0] == "NONE"
    assert client.move_on(new)[0] == NO_TXN


def test_a_client_learns_of_an_epoch_once_it_is_durable() -> None:
    desk = Desk()
    line = Line(desk)
    client = TransactionalClient(line.ask, desk.after, TOPIC)
    _, who = client.init()
    desk.runtime.slow_disk = True
    asked = len(line.answers())
    line.send(ApiKey.END_TXN, 5, client._mine(who, committed=False))
    assert asked not in line.answers()
    desk.runtime.sync()
    desk.runtime.slow_disk = False
    assert line.answers()[asked]["epoch"] == who[1] + 1
    door = desk.crash()
    again = TransactionalClient(Line(door).ask, door.after, TOPIC)
    assert again.init() == ("NONE", (who[0], who[1] + 2))
