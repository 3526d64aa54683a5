"""Requests of many megabytes: taken, or refused so that no client sends them for ever (SPEC L3)."""

from __future__ import annotations

import pytest

from nexo import limits
from nexo.dialects.kafka.format.apis import ApiKey
from nexo.dialects.kafka.format.codec import KafkaMessage
from nexo.dialects.kafka.format.errors import Error
from tests.kafka.asker import Asker
from tests.kafka.batches import batch, errors, produced
from tests.kafka.session import Door, Line
from tests.unit.brokers.stream.desk import Desk

PAYLOAD = 100_000
"""The largest frame of our own protocol."""
TOPIC = "big"


@pytest.fixture
def door() -> Door:
    desk = Desk(max_payload_bytes=PAYLOAD)
    desk.client().make(TOPIC, partitions=4)
    return Door(desk)


def produce(*batches: bytes, acks: int = -1) -> KafkaMessage:
    return produced(TOPIC, *batches, acks=acks)


def test_a_request_may_be_larger_than_a_frame_of_ours(door: Door) -> None:
    line = Line(door)
    answer = line.ask(ApiKey.PRODUCE, 8, produce(*[batch(bytes(90_000))] * 4))
    assert errors(answer) == [0, 0, 0, 0]
    assert [part.next_offset for part in door.desk.client().describe(TOPIC).partitions] == [1] * 4


def test_a_batch_over_the_limit_is_refused_alone(door: Door) -> None:
    small, large = batch(b"v"), batch(bytes(PAYLOAD))
    answer = Line(door).ask(ApiKey.PRODUCE, 8, produce(small, large, small))
    assert errors(answer) == [0, Error.MESSAGE_TOO_LARGE, 0]
    assert "must be at most 100,000" in answer["topics"][0]["partitions"][1]["message"]


@pytest.mark.parametrize("version", [3, 8, 9])
@pytest.mark.parametrize("piece", [7, 1_000, 1 << 20])
def test_a_request_over_the_limit_is_refused_by_partition(
    door: Door, version: int, piece: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "KAFKA_REQUEST_BYTES", 200_000)
    line = Line(door)
    line.ask(ApiKey.METADATA, 1, {"topics": []})
    sent = line.encoded(ApiKey.PRODUCE, version, produce(*[batch(bytes(90_000))] * 4))
    for at in range(0, len(sent), piece):
        assert not line.is_closed()
        line.deliver(sent[at : at + piece])
    assert errors(line.answers()[1]) == [Error.MESSAGE_TOO_LARGE] * 4
    assert line.is_closed()
    assert [part.next_offset for part in door.desk.client().describe(TOPIC).partitions] == [0] * 4


def test_without_acks_a_request_over_the_limit_just_ends_the_connection(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "KAFKA_REQUEST_BYTES", 200_000)
    line = Line(door)
    line.send(ApiKey.PRODUCE, 8, produce(*[batch(bytes(90_000))] * 4, acks=0))
    assert line.is_closed()
    assert not line.answers()


@pytest.mark.parametrize("cut", [4, 11, 25, 40, 300_000])
def test_a_huge_request_that_makes_no_sense_ends_the_connection(door: Door, cut: int) -> None:
    line = Line(door)
    sent = line.encoded(ApiKey.PRODUCE, 9, produce(*[batch(bytes(90_000))] * 4))
    size = limits.KAFKA_REQUEST_BYTES + 1
    line.deliver(size.to_bytes(4, "big") + sent[4:cut])
    for _ in range(size // limits.MIB + 1):
        if line.is_closed():
            break
        line.deliver(b"\xff" * limits.MIB)
    assert line.is_closed()
    assert not line.answers()


def test_no_other_request_may_be_so_large(door: Door) -> None:
    line = Line(door)
    head = (limits.KAFKA_REQUEST_BYTES + 1).to_bytes(4, "big") + b"\0\3\0\1\0\0\0\0"
    line.deliver(head)
    assert line.is_closed()


def test_further_large_requests_wait_for_room(door: Door) -> None:
    first, second, third = Line(door), Line(door), Line(door)
    sent = first.encoded(ApiKey.PRODUCE, 8, produce(*[batch(bytes(90_000))] * 4))
    many = limits.LARGE_REQUESTS_BYTES // len(sent)
    lines = [Line(door) for _ in range(many)]
    for line in lines:
        line.deliver(sent[:20_000])
        assert line.is_read()
    for line in (first, second, third):
        line.encoded(ApiKey.PRODUCE, 8, produce())
        line.deliver(sent[:20_000])
        assert not line.is_read()
    first.drop()
    lines[0].encoded(ApiKey.PRODUCE, 8, produce())
    lines[0].deliver(sent[20_000:])
    assert errors(lines[0].answers()[0]) == [0, 0, 0, 0]
    assert second.is_read()
    assert not third.is_read()
    lines[1].drop()
    assert third.is_read()
    third.deliver(sent[20_000:])
    assert errors(third.answers()[0]) == [0, 0, 0, 0]


def test_who_keeps_others_waiting_must_send(door: Door) -> None:
    slow, other = Line(door), Line(door)
    size = limits.LARGE_REQUESTS_BYTES // 3 - 100
    head = size.to_bytes(4, "big") + bytes(100)
    slow.deliver(head)
    for _ in range(2):
        Line(door).deliver(head)
    door.desk.runtime.time.now += 300_000
    slow.look()
    assert not slow.is_closed()
    other.deliver(head)
    slow.look()
    assert slow.is_closed()


def test_the_default_settings_of_large_producers_work(bootstrap: str, topic: str) -> None:
    """40 partitions with nearly a megabyte each, as franz-go sends them."""
    asker = Asker(bootstrap)
    row = {"name": TOPIC, "partitions": 40, "replication": 1}
    asker.ask(ApiKey.CREATE_TOPICS, 4, {"topics": [row], "timeout_ms": 9_000})
    answer = asker.ask(ApiKey.PRODUCE, 8, produce(*[batch(bytes(900_000))] * 40))
    assert errors(answer) == [0] * 40
    asker.close()
