"""Which topics and patterns are allowed, and which match (SPEC C1, C5)."""

from __future__ import annotations

import pytest

from nexo.errors import InvalidName
from nexo.model.patterns import check_topic, matches, parse_pattern


@pytest.mark.parametrize(
    ("pattern", "topic"),
    [
        ("a", "a"),
        ("home/+/sw", "home/kitchen/sw"),
        ("+", "a"),
        ("+/+", "/"),
        ("a/+", "a/"),
        ("home/#", "home/kitchen/sw"),
        ("home/#", "home"),
        ("#", "a/b/c"),
        ("a/+/#", "a/b"),
        ("$SYS/#", "$SYS/load"),
        ("$share/g/a/+", "a/b"),
    ],
)
def test_these_match(pattern: str, topic: str) -> None:  # SPEC C1
    assert matches(pattern, topic)


@pytest.mark.parametrize(
    ("pattern", "topic"),
    [
        ("a", "b"),
        ("a", "a/b"),
        ("a/b", "a"),
        ("a/+", "a"),
        ("a/+", "a/b/c"),
        ("a/+/c", "a/b/d"),
        ("a/#", "ab"),
        ("#", "$SYS/load"),
        ("+/load", "$SYS/load"),
    ],
)
def test_these_do_not_match(pattern: str, topic: str) -> None:  # SPEC C1
    assert not matches(pattern, topic)


@pytest.mark.parametrize(
    "topic", ["", "a/+/b", "a/#", "a+b", "nul\0", "$share/g/a", "a/" * 128, "x" * 65_536]
)
def test_a_topic_with_wildcards_or_out_of_bounds_is_refused(topic: str) -> None:  # SPEC C1
    with pytest.raises(InvalidName):
        check_topic(topic)


@pytest.mark.parametrize(
    "pattern",
    ["", "a/#/b", "a#", "a/b+", "+a", "nul\0", "$share", "$share/g", "$share//a", "$share/g/",
     "$share/+/a", "$share/g/a/#/b"],
)  # fmt: skip
def test_a_pattern_that_can_never_match_is_refused(pattern: str) -> None:  # SPEC C1
    with pytest.raises(InvalidName):
        parse_pattern(pattern)


def test_a_shared_pattern_names_its_group() -> None:  # SPEC C5
    pattern = parse_pattern("$share/workers/jobs/#")
    assert (pattern.group, pattern.levels) == ("workers", ("jobs", "#"))
