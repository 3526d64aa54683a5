"""Messages and addresses in Kafka's terms."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from nexo.errors import InvalidInput, InvalidOption
from nexo.topics.kafka import connection_options, encoded, row_of
from nexo.topics.model import ProducerRecord, TopicMessage


def through_kafka(record: ProducerRecord) -> TopicMessage[Any]:
    """As it comes back from a cluster."""
    sent = encoded(record)
    return received(sent["key"], sent["value"], sent["headers"])


def received(
    key: bytes | None, value: bytes | None, headers: list[tuple[str, bytes]]
) -> TopicMessage[Any]:
    row = SimpleNamespace(offset=4, timestamp=1_000, key=key, value=value, headers=tuple(headers))
    return TopicMessage("t", 2, row_of(row))


@pytest.mark.parametrize("value", [b"", b"\xff", "", "tëxt", "1", 0, 1.5, [1, {"a": None}], True])
def test_values_come_back_as_they_were(value: Any) -> None:
    message = through_kafka(ProducerRecord(value, key="k", headers={"trace": "1", "n": 2}))
    assert message.value == value
    assert type(message.value) is type(value)
    assert message.headers == {"trace": "1", "n": "2"}  # Kafka's headers are bytes
    assert (message.key, message.offset, message.partition) == ("k", 4, 2)


def test_a_deletion_stays_one() -> None:
    message = through_kafka(ProducerRecord(None, key="k"))
    assert message.payload is None
    assert message.value is None


def test_what_other_programs_wrote_can_be_read() -> None:
    assert received(None, json.dumps({"a": 1}).encode(), []).value == {"a": 1}
    assert received(None, b"\x00binary", []).value == b"\x00binary"
    assert received(None, b"plain words", []).value == b"plain words"


def test_addresses_name_brokers_and_credentials() -> None:
    assert connection_options("kafka://a:9092,b:9093") == {
        "bootstrap_servers": ["a:9092", "b:9093"]
    }
    found = connection_options(
        "kafka://me:p%40ss@a:9092?security_protocol=SASL_SSL&request_timeout_ms=500"
    )
    assert found["sasl_plain_username"] == "me"
    assert found["sasl_plain_password"] == "p@ss"
    assert found["request_timeout_ms"] == 500
    assert found["ssl_context"] is not None
    with pytest.raises(InvalidOption, match="colour"):
        connection_options("kafka://a?colour=red")
    for bad in ("kafka://", "http://a"):
        with pytest.raises(InvalidInput, match="Kafka URL"):
            connection_options(bad)
