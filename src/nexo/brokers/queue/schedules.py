"""Cron schedules: what each pushes, and when next, in a time zone (SPEC D9, O6).

The rules are Debian's cron, as the library `cronsim` keeps them: a time matches on day *or*
weekday if both are restricted; a local time that a clock change skips runs right after it, and
one that it repeats runs once.
"""

from __future__ import annotations

from datetime import UTC, datetime, tzinfo
from zoneinfo import ZoneInfo

import msgspec
from cronsim import CronSim, CronSimError

from nexo.brokers.queue.jobs import NewJobs
from nexo.brokers.queue.records import CronMoved, CronSet
from nexo.errors import InvalidInput, NotFound

_REMOVED = -1
"""The next time of a removed schedule."""
_NICKNAMES = {
    "@hourly": "0 * * * *", "@daily": "0 0 * * *", "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0", "@monthly": "0 0 1 * *", "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}  # fmt: skip
_MOST_CHARS = 200


class Schedules:
    """The schedules of one queue."""

    __slots__ = ("by_name",)

    def __init__(self, by_name: dict[str, CronSet] | None = None) -> None:
        self.by_name = by_name or {}

    def set(self, cron: CronSet) -> None:
        self.by_name[cron.name] = cron

    def move(self, moved: CronMoved) -> None:
        """Set a schedule's next time, or remove it."""
        if moved.next_ms == _REMOVED:
            del self.by_name[moved.name]
        else:
            cron = self.by_name[moved.name]
            self.by_name[moved.name] = msgspec.structs.replace(cron, next_ms=moved.next_ms)

    def removal(self, name: str) -> CronMoved:
        """The record that removes a schedule; `NotFound` if there is none of that name."""
        if name not in self.by_name:
            raise NotFound(f"schedule {name!r} not found")
        return CronMoved(name, _REMOVED)

    def due(self, now_ms: int) -> list[CronSet]:
        return [cron for cron in self.by_name.values() if cron.next_ms <= now_ms]

    def next_ms(self) -> int:
        """When the next one is due. There must be one."""
        return min(cron.next_ms for cron in self.by_name.values())


def following(cron: CronSet, now_ms: int) -> CronMoved:
    """The next time after now: a schedule that was due while the server was down runs once."""
    return CronMoved(cron.name, next_after(cron.text, now_ms, cron.zone))


def job_of(cron: CronSet) -> NewJobs:
    keys: list[str | None] | None = None if cron.key is None else [cron.key]
    return NewJobs(1, cron.value, cron.priority, keys=keys)


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
