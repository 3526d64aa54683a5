"""Patterns of topics match what `re` matches, in bounded time, or are refused."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nexo.brokers.stream.groups.kafka.topic_pattern import TopicPattern
from nexo.errors import InvalidInput

ATOMS = st.sampled_from(["a", "b", ".", "-", "[ab]", "[^a]", "[a-c.]", r"\.", r"\d", r"\w", "1"])


def _more(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    counts = st.sampled_from(["*", "+", "?", "{2}", "{1,}", "{0,2}", "*?"])
    return st.one_of(
        st.lists(inner, min_size=1, max_size=4).map("".join),
        st.lists(inner, min_size=1, max_size=3).map(lambda found: f"({'|'.join(found)})"),
        st.tuples(inner, counts).map(lambda found: f"(?:{found[0]}){found[1]}"),
    )


@given(
    st.recursive(ATOMS, _more, max_leaves=8),
    st.lists(st.text("abc.-1", max_size=8), min_size=1, max_size=8),
)
def test_patterns_match_what_pythons_match(text: str, names: list[str]) -> None:
    pattern = TopicPattern(text)
    for name in names:
        assert pattern.matches(name) == bool(re.fullmatch(text, name, re.ASCII))


@pytest.mark.parametrize(
    ("text", "yes", "no"),
    [
        ("orders", ["orders"], ["order", "orders2", ""]),
        ("^orders-.*$", ["orders-", "orders-eu"], ["my-orders-eu"]),
        ("", [""], ["a"]),
        ("a|", ["a", ""], ["b"]),
        (r"[\w.-]+\.v[0-9]{1,2}", ["x.v1", "a-b.c.v12"], ["x.v", "x.v123", "x-v1"]),
        ("[]a]+", ["]a"], ["b"]),
        ("[a-]", ["a", "-"], ["b"]),
    ],
)
def test_what_people_write(text: str, yes: list[str], no: list[str]) -> None:
    pattern = TopicPattern(text)
    assert all(map(pattern.matches, yes))
    assert not any(map(pattern.matches, no))


@pytest.mark.parametrize("text", ["(a+)+$", "(a|a)*", "(a*)*b", "(.*.*.*)*x", "(a?){50}a{50}"])
def test_patterns_that_take_others_forever_are_matched(text: str) -> None:
    pattern = TopicPattern(text)
    assert pattern.matches("a" * 249) == (text in ("(a+)+$", "(a|a)*"))


@pytest.mark.parametrize(
    "text",
    [
        "(", ")", "[", "[b-a]", "*a", "a**", "a{2", "a{3,1}", "a{x}", "(?=a)", "(?P<n>a)", r"\1",
        r"\p{L}", "a^b", "a$b", "\\", "a" * 501, "(a{1000}){1000}", "(" * 100 + ")" * 100,
        "a{99999}", "^(a|b)$|^c$",
    ],
)  # fmt: skip
def test_what_is_malformed_or_too_large_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="pattern"):
        TopicPattern(text)


def test_a_pattern_that_takes_too_long_says_so() -> None:
    pattern = TopicPattern("(" + "|".join(f".{{{n}}}a.*" for n in range(1, 12)) + ")*z")
    numbers = (number * 7919 % 65_536 for number in range(3_000))
    names = [f"{number:016b}".replace("1", "a") * 8 for number in numbers]
    with pytest.raises(InvalidInput, match="takes too long"):
        any(map(pattern.matches, names))
