"""Times, sizes and positions as people type them: types for click's options and arguments."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import click

from nexo.errors import InvalidInput
from nexo.model import duration_ms

if TYPE_CHECKING:
    from nexo.protocol.stream import Position

_SIZE = re.compile(r"(\d+) ?(?:([kmgt])(?:i?b)?|b)?", re.ASCII | re.IGNORECASE)
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}
_OFFSETS = re.compile(r"\d+:\d+(,\d+:\d+)*", re.ASCII)
_PLACES = (
    "beginning, end, an offset, 0:10,1:20 (offsets by partition), "
    "a time like 2026-01-31T12:00, or an age like 2h"
)


def duration(text: str) -> int:
    """Milliseconds of a duration such as ``30s`` or ``7d``; 0 needs no unit."""
    try:
        return 0 if text == "0" else duration_ms(text)
    except InvalidInput as error:
        raise click.BadParameter(error.message) from None


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
            return int(word)
        case word if _OFFSETS.fullmatch(word):
            pairs = (pair.split(":") for pair in word.split(","))
            return {int(partition): int(offset) for partition, offset in pairs}
        case word:
            return _time(word)


def _time(text: str) -> datetime:
    """A time, or an age counted back from now."""
    try:
        return datetime.now(UTC) - timedelta(milliseconds=duration_ms(text))
    except InvalidInput:
        pass
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise click.BadParameter(f"{text!r} is not {_PLACES}") from None
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def size_text(count: float) -> str:
    """Bytes for people: ``1.5 MiB``."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"
