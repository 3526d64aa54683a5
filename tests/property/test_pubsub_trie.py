"""Routes, retained messages, outboxes and runs against naive models (SPEC C1, C3, C4)."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nexo.brokers.pubsub.message import Publication, PubSubMessage
from nexo.brokers.pubsub.outbox import Outbox, OutboxLimits
from nexo.brokers.pubsub.retained import Retained, RetainedMessages
from nexo.brokers.pubsub.routes import Routes
from nexo.brokers.pubsub.subscriber import PatternSubscription
from nexo.dialects.nexo.pubsub import OURS, Received
from nexo.errors import ProtocolError
from nexo.model import Policy
from nexo.model.patterns import matches, parse_pattern
from nexo.protocol.pubsub import message_frame, parse_run
from tests.unit.brokers.pubsub.recorder import LIMITS, Recorder

LEVEL = st.sampled_from(["", "a", "b", "$x"])
TOPIC = st.lists(LEVEL, min_size=1, max_size=4).map("/".join).filter(bool)
WILD = st.sampled_from(["", "a", "b", "$x", "+"])
PATTERN = st.builds(
    lambda levels, rest: "/".join(levels + rest),
    st.lists(WILD, min_size=1, max_size=4),
    st.sampled_from([[], ["#"]]),
).filter(bool) | st.just("#")


@given(st.lists(PATTERN, max_size=12), st.lists(TOPIC, min_size=1, max_size=6), st.integers(1, 9))
def test_routes_are_what_trying_every_pattern_gives(
    patterns: list[str], topics: list[str], max_cached: int
) -> None:
    """A pattern that comes up again goes away; routes are asked for after every change."""
    routes = Routes(max_cached)
    live: dict[str, PatternSubscription] = {}
    for text in patterns:
        if text in live:
            routes.remove(parse_pattern(text), live.pop(text))
        else:
            live[text] = PatternSubscription(Recorder().client, text, LIMITS)
            routes.add(parse_pattern(text), live[text])
        for topic in topics:
            found = routes.find(topic.encode())
            assert {s.pattern for s in found.direct} == {p for p in live if matches(p, topic)}


CHANGE = st.tuples(TOPIC, st.sampled_from(["put", "clear"]), st.integers(0, 5))


@given(st.lists(CHANGE, max_size=30), PATTERN)
def test_retained_messages_are_what_a_plain_dict_would_hold(
    changes: list[tuple[str, str, int]], pattern: str
) -> None:
    """The time passes with each change; a TTL of 0 is none."""
    retained, model = RetainedMessages(), dict[str, int]()
    for now_ms, (topic, what, ttl_ms) in enumerate(changes, 1):
        retained.expire(now_ms)
        model = {t: due for t, due in model.items() if not due or due > now_ms}
        if what == "put":
            model[topic] = now_ms + ttl_ms if ttl_ms else 0
            retained.put(Retained(PubSubMessage(topic, b"x", 7), model[topic]))
        else:
            assert retained.clear(topic) == (model.pop(topic, None) is not None)
        found = [one.topic for one in retained.matching(parse_pattern(pattern).levels, now_ms)]
        assert sorted(found) == sorted(t for t in model if matches(pattern, t))
        assert retained.count == len(model)


@given(
    st.lists(st.lists(st.binary(max_size=12), max_size=5), max_size=20),
    st.builds(OutboxLimits, st.integers(1, 6), st.integers(1, 40), st.sampled_from(Policy)),
)
def test_an_outbox_never_exceeds_its_limits_and_loses_nothing_uncounted(
    offers: list[list[bytes]], limits: OutboxLimits
) -> None:
    outbox, offered = Outbox(limits), 0
    for messages in offers:
        if not outbox.offer(messages):
            assert limits.policy is Policy.DISCONNECT
            return
        offered += len(messages)
        assert len(outbox) <= limits.max_messages
        assert outbox.size_bytes <= limits.max_bytes
        assert len(outbox) + outbox.dropped == offered
    taken = outbox.take(10_000)
    assert (outbox.size_bytes, len(outbox)) == (0, 0)
    assert _is_subsequence(taken, [m for messages in offers for m in messages])


def _is_subsequence(some: list[bytes], every: list[bytes]) -> bool:
    rest = iter(every)
    return all(message in rest for message in some)


MESSAGES = st.lists(st.tuples(TOPIC, st.binary(min_size=1, max_size=20)), min_size=1, max_size=6)


@given(MESSAGES, st.sampled_from([b"", b'{"trace":"1"}']), st.data())
def test_a_run_is_read_back_and_a_cut_one_is_refused(
    messages: list[tuple[str, bytes]], headers: bytes, data: st.DataObject
) -> None:
    frames = [message_frame(topic.encode(), value, 7, headers) for topic, value in messages]
    whole = b"".join(frames)
    run = parse_run(whole)
    assert run.topics == [topic.encode() for topic, _ in messages]
    assert [whole[a:b] for a, b in pairwise([0, *run.ends])] == frames
    received = Received(run)
    assert received.part(0, len(frames)).alone(OURS) == frames
    expected = [PubSubMessage(topic, value, 7, headers) for topic, value in messages]
    assert received.messages == expected
    assert Publication.of(expected).part(0, len(frames)).alone(OURS) == frames
    cut = data.draw(st.integers(0, len(whole) - 1))
    if cut not in run.ends:
        with pytest.raises(ProtocolError):
            parse_run(whole[:cut])


@given(st.binary(max_size=80))
def test_random_bytes_are_no_run(data: bytes) -> None:
    try:
        run = parse_run(data)
    except ProtocolError:
        return
    assert run.ends[-1] == len(data)
