"""Subscribe, publish, share, fall behind (SPEC C1, C2, C4, C5)."""

from __future__ import annotations

import pytest

from nexo.brokers.pubsub import status
from nexo.brokers.pubsub.engine import PubSubEngine
from nexo.brokers.pubsub.message import Encoding
from nexo.brokers.pubsub.outbox import OutboxLimits
from nexo.dialects.nexo.pubsub import CLASSIC, OURS
from nexo.errors import InvalidName
from tests.unit.brokers.pubsub.recorder import DISCONNECT, LIMITS, Recorder, run


@pytest.fixture
def engine() -> PubSubEngine:
    return PubSubEngine()


def subscribed(engine: PubSubEngine, *patterns: str, encoding: Encoding = OURS) -> Recorder:
    recorder = Recorder(encoding)
    for pattern in patterns:
        engine.subscribe(recorder.client, pattern, LIMITS)
    return recorder


def test_a_message_reaches_every_matching_subscriber_once(engine: PubSubEngine) -> None:  # SPEC C2
    one = subscribed(engine, "a/#", "a/+", "a/b", "#")
    two = subscribed(engine, "a/b")
    other = subscribed(engine, "c")
    assert engine.publish(run(("a/b", b"x"))) == [(2, 1)]
    assert one.received == two.received == [("a/b", b"x")]
    assert other.received == []


def test_a_publish_without_subscribers_has_no_receivers(engine: PubSubEngine) -> None:  # SPEC C3
    assert engine.publish(run(("a", b"x"))) == [(0, 1)]


def test_one_bad_topic_in_a_run_delivers_nothing(engine: PubSubEngine) -> None:  # SPEC C1
    everyone = subscribed(engine, "#")
    with pytest.raises(InvalidName, match="wildcard"):
        engine.publish(run(("a", b"x"), ("a/+", b"y")))
    assert everyone.received == []
    assert engine.published == 0


def test_a_bad_pattern_changes_nothing(engine: PubSubEngine) -> None:  # SPEC C1
    recorder = Recorder()
    with pytest.raises(InvalidName):
        engine.subscribe(recorder.client, "a/#/b", LIMITS)
    assert not recorder.client.subscriptions
    assert not engine.subscribers


def test_a_run_reaches_a_subscriber_in_one_piece_and_unchanged(
    engine: PubSubEngine,
) -> None:  # SPEC C4
    first, second = subscribed(engine, "a/#"), subscribed(engine, "a/#")
    messages = run(("a/1", b"x"), ("a/2", b"y"), ("a/1", b"z"))
    engine.publish(messages)
    assert first.pushes == [messages.part(0, 3).joined(OURS)]
    assert first.pushes[0] is second.pushes[0]


def test_a_run_is_cut_where_the_receivers_change(engine: PubSubEngine) -> None:
    a, b = subscribed(engine, "a"), subscribed(engine, "b")
    counts = engine.publish(run(("a", b"1"), ("a", b"2"), ("b", b"3"), ("none", b""), ("a", b"4")))
    assert counts == [(1, 2), (1, 1), (0, 1), (1, 1)]
    assert a.contents == [b"1", b"2", b"4"]
    assert b.contents == [b"3"]


def test_routes_follow_subscriptions_that_come_and_go(engine: PubSubEngine) -> None:
    message = run(("a/b", b"x"))
    assert engine.publish(message) == [(0, 1)]
    exact, wild = subscribed(engine, "a/b"), subscribed(engine, "a/+")
    assert engine.publish(message) == [(2, 1)]
    assert engine.unsubscribe(exact.client, "a/b")
    assert engine.publish(message) == [(1, 1)]
    engine.leave(wild.client)
    assert engine.publish(message) == [(0, 1)]
    assert not engine.subscribers


def test_unsubscribing_from_what_was_never_subscribed_says_so(engine: PubSubEngine) -> None:
    assert not engine.unsubscribe(Recorder().client, "a")


def test_older_clients_get_their_own_push_frame(engine: PubSubEngine) -> None:
    old, new = subscribed(engine, "a", encoding=CLASSIC), subscribed(engine, "a")
    engine.publish(run(("a", b"x"), ("a", b"y")))
    assert old.frames == [(0, b"\0\0\0\1a\0x"), (0, b"\0\0\0\1a\0y")]
    assert new.contents == [b"x", b"y"]


def test_a_slow_subscriber_waits_alone_and_then_catches_up(engine: PubSubEngine) -> None:  # SPEC C4
    slow, quick = subscribed(engine, "a"), subscribed(engine, "a")
    engine.congest(slow.client)
    engine.publish(run(("a", b"1"), ("a", b"2")))
    assert (slow.contents, quick.contents) == ([], [b"1", b"2"])
    slow.client.drain()
    engine.publish(run(("a", b"3")))
    assert slow.contents == []
    assert slow.client.catch_up()
    engine.publish(run(("a", b"4")))
    assert slow.contents == [b"1", b"2", b"3", b"4"]


def test_what_a_slow_subscriber_lost_is_counted_and_shown(engine: PubSubEngine) -> None:  # SPEC C4
    slow = Recorder()
    engine.subscribe(slow.client, "a", OutboxLimits(2, 1_000))
    engine.congest(slow.client)
    engine.publish(run(*[("a", b"x")] * 5))
    assert status.summary(engine)["slow"] == [{"client": "test", "waiting": 2, "dropped": 3}]
    engine.leave(slow.client)
    assert status.summary(engine)["dropped"] == 3


def test_a_large_backlog_is_sent_in_chunks(engine: PubSubEngine) -> None:
    slow = Recorder()
    engine.subscribe(slow.client, "a", OutboxLimits(100, 10_000_000))
    engine.congest(slow.client)
    engine.publish(run(*[("a", b"x" * 100_000)] * 10))
    slow.client.drain()
    chunks = 1
    while not slow.client.catch_up():
        chunks += 1
    assert chunks == len(slow.pushes) == 4
    assert len(slow.received) == 10


def test_the_disconnect_policy_ends_the_connection(engine: PubSubEngine) -> None:  # SPEC C4
    slow = Recorder()
    engine.subscribe(slow.client, "a", DISCONNECT)
    engine.congest(slow.client)
    engine.publish(run(("a", b"1"), ("a", b"2")))
    assert slow.kicked == []
    engine.publish(run(("a", b"3")))
    assert slow.kicked == ["too slow for 'a'"]


def test_a_group_shares_messages_in_turn(engine: PubSubEngine) -> None:  # SPEC C5
    one, two = (subscribed(engine, "$share/g/a/+") for _ in range(2))
    counts = engine.publish(run(*[("a/b", b"%d" % n) for n in range(4)]))
    assert counts == [(1, 4)]
    assert one.contents == [b"0", b"2"]
    assert two.contents == [b"1", b"3"]
    assert len(one.pushes) == 1


def test_a_group_skips_members_that_fall_behind(engine: PubSubEngine) -> None:  # SPEC C5
    slow, quick = (subscribed(engine, "$share/g/a") for _ in range(2))
    engine.congest(slow.client)
    engine.publish(run(("a", b"1"), ("a", b"2")))
    assert quick.contents == [b"1", b"2"]
    engine.congest(quick.client)
    engine.publish(run(("a", b"3"), ("a", b"4")))
    waiting = [len(r.client.subscriptions["$share/g/a"].outbox) for r in (slow, quick)]
    assert waiting == [1, 1]


def test_a_shared_copy_comes_beside_the_normal_one_and_is_marked(engine: PubSubEngine) -> None:
    both = subscribed(engine, "a", "$share/g/a")  # SPEC C5
    assert engine.publish(run(("a", b"x"))) == [(2, 1)]
    (plain, _), (shared, payload) = both.frames
    assert (plain, shared) == (1, 5)
    assert payload.startswith(b"\0\0\0\x0a$share/g/a")
    assert both.contents == [b"x", b"x"]


def test_the_last_member_takes_its_group_along(engine: PubSubEngine) -> None:
    member = subscribed(engine, "$share/g/a")
    engine.leave(member.client)
    assert engine.publish(run(("a", b"x"))) == [(0, 1)]
