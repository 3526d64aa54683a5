"""Retained messages: last value, TTL, clearing, recovery (SPEC C3)."""

from __future__ import annotations

import msgspec
import pytest

from nexo.brokers.pubsub import records
from nexo.brokers.pubsub.message import PubSubMessage
from nexo.brokers.pubsub.retained import Retained, RetainedMessages
from nexo.errors import Corrupt
from nexo.protocol.pubsub import message_frame


def replay(changes: list[bytes], retained: RetainedMessages, now_ms: int) -> bool:
    """Apply changes as recovery does; whether one was old."""
    old = [records.apply(change, retained) for change in changes]
    retained.expire(now_ms)
    return any(old)


def kept(*topics: str, expires_ms: int = 0) -> RetainedMessages:
    retained = RetainedMessages()
    for topic in topics:
        retained.put(Retained(PubSubMessage(topic, topic.encode(), 7), expires_ms))
    return retained


def found(retained: RetainedMessages, pattern: str, now_ms: int = 0) -> set[str]:
    return {one.topic for one in retained.matching(pattern.split("/"), now_ms)}


def test_only_the_last_message_of_a_topic_is_kept() -> None:
    retained = kept("a")
    retained.put(Retained(PubSubMessage("a", b"newer", 7), 0))
    assert [one.message.value for one in retained.matching(["a"], 0)] == [b"newer"]
    assert (retained.count, retained.size_bytes) == (1, 6)


@pytest.mark.parametrize(
    ("pattern", "topics"),
    [
        ("a/b", {"a/b"}),
        ("a/+", {"a/b", "a/c"}),
        ("a/#", {"a", "a/b", "a/c", "a/b/d"}),
        ("+", {"a"}),
        ("#", {"a", "a/b", "a/c", "a/b/d"}),
        ("$SYS/+", {"$SYS/x"}),
        ("none/#", set()),
    ],
)
def test_wildcards_find_what_they_match(pattern: str, topics: set[str]) -> None:
    retained = kept("a", "a/b", "a/c", "a/b/d", "$SYS/x")
    assert found(retained, pattern) == topics


def test_clearing_forgets_one_topic_and_leaves_its_neighbours() -> None:
    retained = kept("a", "a/b", "a/b/c")
    assert retained.clear("a/b")
    assert not retained.clear("a/b")
    assert found(retained, "#") == {"a", "a/b/c"}


def test_an_expired_message_is_not_seen_and_its_memory_is_freed() -> None:
    retained = kept("a", expires_ms=100)
    assert found(retained, "a", 99) == {"a"}
    assert found(retained, "a", 100) == set()
    assert retained.next_due_ms() == 100
    retained.expire(100)
    assert (retained.count, retained.next_due_ms()) == (0, None)


def test_a_newer_message_outlives_the_ttl_of_the_older() -> None:
    retained = kept("a", expires_ms=100)
    retained.put(Retained(PubSubMessage("a", b"newer", 7), 0))
    retained.expire(100)
    assert found(retained, "a", 100) == {"a"}


def test_refreshing_a_topic_all_day_does_not_grow_memory() -> None:
    retained = RetainedMessages()
    for due_ms in range(1, 10_000):
        retained.put(Retained(PubSubMessage("a", b"x", 7), due_ms))
    assert len(retained._due) < 100


def test_records_rebuild_what_was_retained() -> None:
    retained = kept("a", "b", "$SYS/x")
    journal = [*records.snapshot(retained, 0), records.cleared("a")]
    journal.append(records.kept(Retained(PubSubMessage("late", b"x", 7), 50)))
    again = RetainedMessages()
    replay(journal, again, now_ms=50)
    assert {one.topic for one in again.all(50)} == {"b", "$SYS/x"}


def test_a_record_that_makes_no_sense_is_reported() -> None:
    with pytest.raises(Corrupt):
        replay([b"\xff"], RetainedMessages(), 0)


def test_a_record_of_version_0_1_0_becomes_a_message() -> None:
    frame = message_frame(b"a/b", b"\x01x", 77)
    old = msgspec.msgpack.encode([1, "a/b", frame, 0])
    retained = RetainedMessages()
    assert replay([old], retained, 0)
    (found,) = retained.all(0)
    assert found.message == PubSubMessage("a/b", b"\x01x", 77)
    assert not replay([*records.snapshot(retained, 0)], again := RetainedMessages(), 0)
    assert list(again.all(0)) == [found]
    with pytest.raises(Corrupt, match="cut short"):
        replay([msgspec.msgpack.encode([1, "a", frame[:20], 0])], retained, 0)


def test_headers_are_kept_with_the_message() -> None:
    message = PubSubMessage("a", b"\x01x", 7, b'{"trace":"1"}')
    again = RetainedMessages()
    replay([records.kept(Retained(message, 0))], again, 0)
    assert [one.message for one in again.all(0)] == [message]
