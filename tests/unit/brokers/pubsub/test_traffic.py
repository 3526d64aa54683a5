"""Which topics are in use."""

from __future__ import annotations

from nexo.brokers.pubsub import status
from nexo.brokers.pubsub.engine import LONGEST, PubSubEngine, Traffic
from tests.unit.brokers.pubsub.recorder import run


def test_topics_without_subscribers_are_counted_too() -> None:
    engine = PubSubEngine()
    engine.publish(run(("a/b", b"x")))
    engine.publish(run(("a/c", b"x"), ("a/b", b"y"), ("$sys/load", b"z")))
    assert status.topics(engine, "a/+", 10) == [
        {"topic": "a/c", "messages": 1},
        {"topic": "a/b", "messages": 2},
    ]
    assert [row["topic"] for row in status.topics(engine, "#", 1)] == ["a/c"]


def test_only_the_topics_used_last_are_remembered() -> None:
    traffic = Traffic(most=3)
    for topic in (b"a", b"b", b"c"):
        traffic.count([topic])
    assert dict(traffic.latest()) == {"a": 1, "b": 1, "c": 1}
    for topic in (b"b", b"d"):
        traffic.count([topic])
    assert list(traffic.latest()) == [("d", 1), ("b", 2), ("c", 1)]
    for number in range(1_000):
        traffic.count([b"%d" % number, b"b"])
    assert len(list(traffic.latest())) == 3
    assert dict(traffic.latest())["b"] == 1_002


def test_very_long_topics_are_left_out() -> None:
    traffic = Traffic()
    long = b"x" * (LONGEST + 1)
    traffic.count([long])
    traffic.count([long, b"short"])
    assert list(traffic.latest()) == [("short", 1)]
