"""Times, sizes and positions as people type them: types for click's options and arguments."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from nexo.protocol.stream import Position

_SIZE = re.compile(r"(\d+) ?(?:([kmgt])(?:i?b)?|b)?", re.ASCII | re.IGNORECASE)
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}
_SPAN = re.compile(r"(\d{1,20}(?:\.\d{1,9})?) ?(ms|s|m|h|d)?", re.ASCII)
_UNIT_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_MOST_MS = 36_500 * _UNIT_MS["d"]
_MOST_OFFSET = 2**63 - 1
_OFFSETS = re.compile(r"\d+:\d+(,\d+:\d+)*", re.ASCII)
_PLACES = (
    "beginning, end, an offset, 0:10,1:20 (offsets by partition), "
    "a time like 2026-01-31T12:00, or an age like 2h"
)


def seconds(least_ms: int = 0) -> Callable[[str], float]:
    """A click type: a duration in seconds, which is also the unit of a bare number."""

    def duration(text: str) -> float:
        return _span(text, least_ms) / 1000

    return duration


def duration(text: str) -> int:
    """A duration in the same form, in milliseconds."""
    return _span(text, 0)


def _span(text: str, least_ms: int) -> int:
    found_ms = span_ms(text)
    if found_ms is None:
        raise click.BadParameter(
            f"{text!r} is not a duration: give seconds, or a number with ms, s, m, h or d, "
            "such as 30, 500ms, 10m or 7d"
        )
    if found_ms < least_ms:
        raise click.BadParameter(f"{text} is too short: at least {span_text(least_ms)}")
    if found_ms > _MOST_MS:
        raise click.BadParameter(f"{text} is too long: at most {span_text(_MOST_MS)}")
    return found_ms


def span_ms(text: str) -> int | None:
    """Milliseconds of ``30``, ``1.5``, ``500ms``, ``10m`` or ``7d``; None if it is no duration."""
    match = _SPAN.fullmatch(text.strip())
    return match and round(Decimal(match[1]) * _UNIT_MS[match[2] or "s"])


def span_text(span_ms: float) -> str:
    """Milliseconds for people: ``1h 30m``, ``2.5s``, ``250ms``."""
    parts = []
    for unit, size in (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000)):
        if span_ms >= size:
            parts.append(f"{span_ms // size:.0f}{unit}")
            span_ms %= size
    if span_ms or not parts:
        parts.append(f"{span_ms:g}ms" if 0 < span_ms < 1_000 else f"{span_ms / 1000:g}s")
    return " ".join(parts)


def size(text: str) -> int:
    """Bytes of a size such as ``512MiB`` or ``1g``, in powers of 1,024."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise click.BadParameter(f"{text!r} is not a size such as 1000, 512KiB or 2GiB")
    factor: int = 1024 ** _POWERS[(match[2] or "").lower()]
    return int(match[1]) * factor


def place(text: str) -> Position | datetime:
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
    age_ms = span_ms(text) if text[-1:].isalpha() else None
    if age_ms is not None and age_ms <= _MOST_MS:
        return datetime.now(UTC) - timedelta(milliseconds=age_ms)
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise click.BadParameter(f"{text!r} is not {wanted}") from None
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def size_text(count: float) -> str:
    """Bytes for people: ``1.5 MiB``."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"
