"""What a permission covers (SPEC A10)."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nexo.access.grants import Action, Extent, covers_topics, parse_grant
from nexo.errors import InvalidInput
from nexo.model import Broker
from nexo.model.patterns import matches

NAME, PREFIX, TOPICS, GROUP = Extent.NAME, Extent.PREFIX, Extent.TOPICS, Extent.GROUP


def allowed(grant: str, broker: Broker, action: str, extent: Extent, name: str) -> bool:
    return parse_grant(grant).allows(broker, Action(action), extent, name)


@pytest.mark.parametrize(
    ("grant", "broker", "action", "name", "allows"),
    [
        ("*:*:*", Broker.QUEUE, "admin", "anything", True),
        ("queue:write:jobs.*", Broker.QUEUE, "write", "jobs.mail", True),
        ("queue:write:jobs.*", Broker.QUEUE, "write", "other", False),
        ("queue:write:jobs.*", Broker.QUEUE, "read", "jobs.mail", False),
        ("queue:write:jobs.*", Broker.STREAM, "write", "jobs.mail", False),
        ("store:read:a", Broker.STORE, "read", "a", True),
        ("store:read:a", Broker.STORE, "read", "ab", False),
        ("stream:read:orders", Broker.STREAM, "read", "orders@billing", True),
        ("stream:read:orders@billing", Broker.STREAM, "read", "orders@billing", True),
        ("stream:read:orders@billing", Broker.STREAM, "read", "orders@other", False),
        ("stream:read:orders@billing", Broker.STREAM, "read", "orders", False),
    ],
)
def test_a_grant_is_for_its_broker_action_and_names(
    grant: str, broker: Broker, action: str, name: str, allows: bool
) -> None:
    assert allowed(grant, broker, action, NAME, name) is allows


@pytest.mark.parametrize(
    ("pattern", "prefix", "covers"),
    [
        ("*", "", True),
        ("users.*", "users.1", True),
        ("users.*", "users", False),
        ("users.?", "users.", False),
        ("u*s.*", "users.", False),
        ("users.1", "users.1", False),
    ],
)
def test_listing_needs_a_grant_for_everything_below(
    pattern: str, prefix: str, covers: bool
) -> None:
    assert allowed(f"store:read:{pattern}", Broker.STORE, "read", PREFIX, prefix) is covers


@pytest.mark.parametrize(
    ("granted", "wanted", "covers"),
    [
        ("#", "a/#", True),
        ("a/#", "a", True),
        ("a/#", "a/+/c", True),
        ("a/+", "a/b", True),
        ("a/+", "a/+", True),
        ("a/+", "a/#", False),
        ("a/+", "a/b/c", False),
        ("a/b", "a/+", False),
        ("a/#", "$share/g/a/b", True),
        ("a/#", "$share/g/b", False),
    ],
)
def test_a_subscription_needs_a_grant_for_every_topic_it_matches(
    granted: str, wanted: str, covers: bool
) -> None:
    assert covers_topics(granted, wanted) is covers


LEVELS = st.sampled_from(["a", "b", "+"])
PATTERNS = st.tuples(st.lists(LEVELS, min_size=1, max_size=3), st.booleans()).map(
    lambda parts: "/".join([*parts[0], "#"] if parts[1] else parts[0])
)
TOPIC_POOL = ["/".join(t) for n in range(1, 5) for t in itertools.product("abc", repeat=n)]


@given(PATTERNS, PATTERNS)
def test_what_is_covered_never_lets_another_topic_through(granted: str, wanted: str) -> None:
    reached = [topic for topic in TOPIC_POOL if matches(wanted, topic)]
    assert covers_topics(granted, wanted) == all(matches(granted, topic) for topic in reached)


def test_a_group_alone_needs_a_grant_that_is_not_for_another_group() -> None:
    assert allowed("stream:read:orders", Broker.STREAM, "read", GROUP, "g")
    assert allowed("stream:read:orders@g", Broker.STREAM, "read", GROUP, "g")
    assert not allowed("stream:read:orders@g", Broker.STREAM, "read", GROUP, "h")


@pytest.mark.parametrize(
    "text", ["", "queue", "queue:write", "queue:write:", "x:read:*", "queue:eat:*", "pubsub:*:a/*"]
)
def test_a_malformed_grant_is_refused_with_what_would_be_right(text: str) -> None:
    with pytest.raises(InvalidInput, match=r"broker:action:pattern|topics"):
        parse_grant(text)
