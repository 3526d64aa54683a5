"""Handlers in the documents' form, which get what was sent."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

import nexo
from nexo.errors import InvalidInput


def test_the_handler_gets_the_value_and_keeps_its_name() -> None:
    def shout(text: str) -> str:
        return text.upper()

    handler = nexo.by_value(shout)
    assert handler(SimpleNamespace(value="hi")) == "HI"
    assert handler.__name__ == "shout"


def test_wrapping_twice_changes_nothing() -> None:
    handler = nexo.by_value(str.upper)
    assert nexo.by_value(handler) is handler  # type: ignore[comparison-overlap]


async def test_an_async_handler_stays_async() -> None:
    async def double(number: int) -> int:
        await asyncio.sleep(0)
        return number * 2

    assert await nexo.by_value(double)(SimpleNamespace(value=2)) == 4


def test_what_is_no_function_is_rejected() -> None:
    with pytest.raises(InvalidInput, match="the handler is a function, not str"):
        nexo.by_value("send")  # type: ignore[arg-type]
