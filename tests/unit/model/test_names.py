"""Any text is a name, and the name gives the text back."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from nexo.errors import InvalidName
from nexo.model import check_name, names
from nexo.model.names import name_of, text_of


@pytest.mark.parametrize("name", ["celery", "a.b", "tenant:orders/eu-1", ".hidden", "a//b", "a/"])
def test_what_may_be_a_name_is_its_own(name: str) -> None:
    assert name_of(name) == text_of(name) == name


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("celery@host.celery.pidbox", "celery:40host.celery.pidbox:x"),
        ("", ":x"),
        ("/abs", ":2fabs:x"),
        ("a/../b", "a/:2e./b:x"),
        ("höhe", "h:c3:b6he:x"),
        ("odd:x", "odd:3ax:x"),
        ("a b", "a:20b:x"),
    ],
)
def test_what_may_not_be_one_is_escaped(text: str, name: str) -> None:
    assert name_of(text) == name
    assert text_of(name) == text


@given(st.text(max_size=60))
def test_any_text_comes_back(text: str) -> None:
    try:
        name = name_of(text)
    except InvalidName:
        assume(False)
    assert check_name(name) == name
    assert text_of(name) == text


@given(st.text(max_size=20), st.text(max_size=20))
def test_two_texts_never_have_one_name(one: str, other: str) -> None:
    assume(one != other)
    try:
        assert name_of(one) != name_of(other)
    except InvalidName:
        assume(False)


@given(st.from_regex(r"[a:x2f./]{1,12}", fullmatch=True))
def test_a_name_that_is_never_made_stands_for_itself(name: str) -> None:
    text = text_of(name)
    assert text == name or name_of(text) == name


@pytest.mark.parametrize("text", ["é" * 100, "\ud800", "a" * 256])
def test_what_cannot_be_a_name_is_refused(text: str) -> None:
    with pytest.raises(InvalidName):
        name_of(text)


def test_a_text_of_many_bytes_is_refused_before_it_is_escaped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(names, "_escape", lambda raw: pytest.fail("escaped"))
    with pytest.raises(InvalidName, match="too long"):
        name_of("é" * 256)
