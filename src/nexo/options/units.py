"""Durations and sizes as people write and read them: ``250ms``, ``1.5h``, ``16 MiB``."""

from __future__ import annotations

import math
import re
from datetime import timedelta
from decimal import Decimal
from typing import Final, TypeAlias

from nexo.errors import InvalidInput

Duration: TypeAlias = float | str | timedelta
"""Seconds, a text like ``"250ms"`` or ``"5m"``, or a `timedelta`."""

MAX_DURATION_MS: Final = 2**53
"""Longer than any real duration, and exact as a float."""
_DURATION = re.compile(r"(\d{1,20}(?:\.\d{1,9})?) ?(ms|s|m|h|d)?", re.ASCII)
_UNIT_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_SIZE = re.compile(r"(\d[\d_]{0,25}) ?(?:([kmgt])(?:i?b)?|b)?", re.ASCII | re.IGNORECASE)
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


def duration_ms(text: str, bare: str = "") -> int:
    """Milliseconds of ``'250ms'``, ``'1.5s'``, ``'5m'``, ``'1h'`` or ``'7d'`` (SPEC G2).

    ``bare`` is the unit of a number without one. If it is empty, only 0 may be without.
    """
    match = _DURATION.fullmatch(text.strip())
    amount = Decimal(match[1]) if match else None
    unit = match and (match[2] or bare or (None if amount else "ms"))
    if amount is None or not unit:
        raise InvalidInput(f"duration {text!r} is not a number followed by ms, s, m, h or d")
    return math.ceil(amount * _UNIT_MS[unit])


def millis(value: Duration, what: str = "duration", high_ms: int = MAX_DURATION_MS) -> int:
    """A duration in milliseconds, rounded up so that a short one does not become none.

    ``what`` names it in the error for one that is negative or over ``high_ms``.
    """
    match value:
        case str():
            ms: float = _named_ms(value, what)
        case timedelta():
            ms = value.total_seconds() * 1_000
        case int() | float() if not isinstance(value, bool):
            ms = value * 1_000
        case _:
            raise InvalidInput(f"{what} {value!r}: use seconds, a text like '5m', or a timedelta")
    if not 0 <= ms <= high_ms:  # nor NaN
        most = "" if high_ms == MAX_DURATION_MS else f", at most {high_ms / 1_000:,.12g} seconds"
        raise InvalidInput(f"{what} {value!r} is out of range: use 0 or more{most}")
    return math.ceil(round(ms, 3))


def _named_ms(text: str, what: str) -> int:
    try:
        return duration_ms(text)
    except InvalidInput as error:
        raise InvalidInput(f"{what}: {error}") from None


def duration_text(length_ms: float) -> str:
    """Milliseconds for people: ``1h 30m``, ``2.5s``, ``250ms``."""
    parts = []
    for unit in ("d", "h", "m"):
        if length_ms >= (size := _UNIT_MS[unit]):
            parts.append(f"{length_ms // size:.0f}{unit}")
            length_ms %= size
    if length_ms or not parts:
        parts.append(f"{length_ms:g}ms" if 0 < length_ms < 1_000 else f"{length_ms / 1000:g}s")
    return " ".join(parts)


def size_bytes(text: str) -> int:
    """Bytes of a size such as ``1000``, ``512MiB`` or ``1g``, in powers of 1,024."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise InvalidInput(f"{text!r} is not a size such as 1000, 512KiB or 2GiB")
    factor: int = 1024 ** _POWERS[(match[2] or "").lower()]
    return int(match[1].replace("_", "")) * factor


def size_text(count: float) -> str:
    """Bytes for people: ``1.5 MiB``."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"
