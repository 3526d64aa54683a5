"""The fixture that `nexo.testing` brings for those who test with Kafka clients (SPEC K2)."""

from __future__ import annotations

from confluent_kafka import Producer


def test_kafka_bootstrap_is_a_server_for_kafka_clients(kafka_bootstrap: str) -> None:
    producer = Producer({"bootstrap.servers": kafka_bootstrap, "log_level": 0})
    producer.produce("orders", b"v")
    assert producer.flush(20) == 0
