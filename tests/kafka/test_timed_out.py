"""Producers are fenced as on Kafka 4.3.1, which gave every answer below (SPEC L4, KIP-360).

``NEXO_TEST_KAFKA=127.0.0.1:9092`` asks a real Kafka as well; `tools/real_kafka.py` starts one.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from typing import TypeAlias

import pytest

from tests.kafka.asker import Asker
from tests.kafka.session import Line
from tests.kafka.transactional import Producer, TransactionalClient
from tests.unit.brokers.stream.desk import Desk

_REAL = os.environ.pop("NEXO_TEST_KAFKA", "")  # servers refuse variables they do not know
OLD, FENCED, NO_TXN = "INVALID_PRODUCER_EPOCH", "PRODUCER_FENCED", "INVALID_TXN_STATE"
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
