"""What waits for a slow subscriber is bounded (SPEC C4)."""

from __future__ import annotations

from nexo.brokers.pubsub.outbox import Outbox, OutboxLimits
from nexo.model import Policy

FOUR = [b"1", b"2", b"3", b"4"]


def test_the_oldest_messages_give_way_by_default() -> None:
    outbox = Outbox(OutboxLimits(2, 100))
    assert outbox.offer(FOUR)
    assert outbox.take(100) == [b"3", b"4"]
    assert outbox.dropped == 2


def test_drop_newest_keeps_what_came_first() -> None:
    outbox = Outbox(OutboxLimits(2, 100, Policy.DROP_NEWEST))
    assert outbox.offer(FOUR)
    assert outbox.take(100) == [b"1", b"2"]
    assert outbox.dropped == 2


def test_disconnect_says_so_when_a_message_does_not_fit() -> None:
    outbox = Outbox(OutboxLimits(2, 100, Policy.DISCONNECT))
    assert outbox.offer(FOUR[:2])
    assert not outbox.offer(FOUR[2:])


def test_bytes_are_bounded_too() -> None:
    outbox = Outbox(OutboxLimits(100, 10))
    outbox.offer([b"x" * 4] * 5)
    assert (len(outbox), outbox.size_bytes, outbox.dropped) == (2, 8, 3)


def test_a_message_larger_than_the_outbox_is_dropped_without_emptying_it() -> None:
    outbox = Outbox(OutboxLimits(100, 10))
    outbox.offer([b"small", b"x" * 11])
    assert outbox.take(100) == [b"small"]
    assert outbox.dropped == 1


def test_taking_stops_once_enough_bytes_are_taken() -> None:
    outbox = Outbox(OutboxLimits(100, 1_000))
    outbox.offer([b"x" * 4] * 5)
    assert len(outbox.take(8)) == 2
    assert outbox.size_bytes == 12
