"""Durations, times and positions as people type them: types for click's parameters."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import click

from nexo.errors import InvalidInput
from nexo.options.units import duration_ms, duration_text

if TYPE_CHECKING:
    from nexo.protocol.stream import StartPosition

_MOST_MS = 36_500 * 86_400_000
_MOST_OFFSET = 2**63 - 1
_OFFSETS = re.compile(r"\d+:\d+(,\d+:\d+)*", re.ASCII)
_PLACES = (
    "beginning, end, an offset, 0:10,1:20 (offsets by partition), "
    "a time like 2026-01-31T12:00, or an age like 2h"
)


def seconds(least_ms: int = 0) -> Callable[[str], float]:
    """A click type: a duration in seconds, which is also the unit of a bare number."""

    def duration(text: str) -> float:
        return _duration_ms(text, least_ms) / 1000

    return duration


def _duration_ms(text: str, least_ms: int) -> int:
    try:
        found_ms = duration_ms(text, "s")
    except InvalidInput:
        raise click.BadParameter(
            f"{text!r} is not a duration: give seconds, or a number with ms, s, m, h or d, "
            "such as 30, 500ms, 10m or 7d"
        ) from None
    if found_ms < least_ms:
        raise click.BadParameter(f"{text} is too short: at least {duration_text(least_ms)}")
    if found_ms > _MOST_MS:
        raise click.BadParameter(f"{text} is too long: at most {duration_text(_MOST_MS)}")
    return found_ms


def place(text: str) -> StartPosition | datetime:
    """A place in a stream, as `Stream.seek` takes it."""
    match text.strip():
        case "beginning":
            return "beginning"
        case "end":
            return "end"
        case word if word.isdecimal():
            return _offset(word)
        case word if _OFFSETS.fullmatch(word):
            pairs = (pair.split(":") for pair in word.split(","))
            return {_offset(partition): _offset(offset) for partition, offset in pairs}
        case word:
            return _time(word)


def _offset(text: str) -> int:
    if len(text) > 19 or int(text) > _MOST_OFFSET:
        raise click.BadParameter(f"{text[:40]} is larger than any offset")
    return int(text)


def moment(text: str) -> datetime:
    """A point in time, for options."""
    return _time(text.strip(), "a time (2026-01-31T12:00) or an age (2h)")


def _time(text: str, wanted: str = _PLACES) -> datetime:
    """A time, or an age counted back from now."""
    if text[-1:].isalpha():
        with suppress(InvalidInput):
            if (age_ms := duration_ms(text)) <= _MOST_MS:
                return datetime.now(UTC) - timedelta(milliseconds=age_ms)
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise click.BadParameter(f"{text!r} is not {wanted}") from None
    return found if found.tzinfo else found.replace(tzinfo=UTC)
