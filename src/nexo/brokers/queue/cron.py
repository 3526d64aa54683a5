"""Cron expressions of five fields, in a time zone (SPEC D9, O6).

The rules are Debian's cron, as the library `cronsim` keeps them: a time matches on day *or*
weekday if both are restricted; a local time that a clock change skips runs right after it, and
one that it repeats runs once.
"""

from __future__ import annotations

from datetime import UTC, datetime, tzinfo
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from nexo.errors import InvalidInput

_NICKNAMES = {
    "@hourly": "0 * * * *", "@daily": "0 0 * * *", "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0", "@monthly": "0 0 1 * *", "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}  # fmt: skip
_MOST_CHARS = 200


def next_after(text: str, now_ms: int, zone: str = "") -> int:
    """The first matching minute strictly after ``now_ms``, in milliseconds.

    ``zone`` is a name of the tz database such as ``Europe/Rome``; empty for UTC. `InvalidInput`
    for an unknown zone, or an expression that is malformed or never matches.
    """
    fields = _NICKNAMES.get(text.strip().lower(), text)
    if len(fields) > _MOST_CHARS or len(fields.split()) != 5:
        raise InvalidInput(f"cron {text[:64]!r}: use five fields, minute hour day month weekday")
    now = datetime.fromtimestamp(now_ms // 1_000, _zone(zone))
    try:
        return round(next(CronSim(fields, now)).timestamp()) * 1_000
    except CronSimError as error:
        raise InvalidInput(f"cron {text!r}: {str(error).lower()}") from None
    except (StopIteration, OverflowError):
        raise InvalidInput(f"cron {text!r} never matches a date") from None


def _zone(name: str) -> tzinfo:
    if name in ("", "UTC"):
        return UTC
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        raise InvalidInput(
            f"cron time zone {name[:64]!r} is unknown: use one like Europe/Rome"
        ) from None
