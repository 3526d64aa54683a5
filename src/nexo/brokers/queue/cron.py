"""Cron expressions of five fields: minute, hour, day, month, weekday; times are UTC.

Each field is ``*``, a number, a range ``a-b``, a list ``a,b`` and any of them with a step
``/n``; months and weekdays may be named, and Sunday is 0 or 7. As in the original, a time
matches on day *or* weekday if both are restricted.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from nexo.errors import InvalidInput

_MONTHS = {
    "jan": 1, "feb": 2, "mar": 3, "apr": 4, "may": 5, "jun": 6,
    "jul": 7, "aug": 8, "sep": 9, "oct": 10, "nov": 11, "dec": 12,
}  # fmt: skip
_DAYS = {"sun": 0, "mon": 1, "tue": 2, "wed": 3, "thu": 4, "fri": 5, "sat": 6}
_NICKNAMES = {
    "@hourly": "0 * * * *", "@daily": "0 0 * * *", "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0", "@monthly": "0 0 1 * *", "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}  # fmt: skip
_SEARCH_DAYS = 366 * 8 + 2
"""Leap days can be eight years apart; what is not found by then never comes."""


@dataclass(frozen=True, slots=True)
class Cron:
    """A parsed expression."""

    text: str
    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    any_day: bool
    any_weekday: bool

    def next_after(self, now_ms: int) -> int:
        """The first matching minute strictly after ``now_ms``, in milliseconds."""
        start = datetime.fromtimestamp(now_ms // 60_000 * 60, UTC) + timedelta(minutes=1)
        day = start.replace(hour=0, minute=0)
        at = self._time_in_day(start.hour, start.minute) if self._matches(day) else None
        while at is None:
            day = self._next_day(day)
            at = self._time_in_day(0, 0)
        return round(day.replace(hour=at[0], minute=at[1]).timestamp()) * 1_000

    def _next_day(self, day: datetime) -> datetime:
        for _ in range(_SEARCH_DAYS):
            day += timedelta(days=1)
            if self._matches(day):
                return day
        raise InvalidInput(f"cron {self.text!r} never matches a date")

    def _matches(self, day: datetime) -> bool:
        if day.month not in self.months:
            return False
        on_day, on_weekday = day.day in self.days, day.isoweekday() % 7 in self.weekdays
        if self.any_day or self.any_weekday:
            return on_day and on_weekday
        return on_day or on_weekday

    def _time_in_day(self, hour: int, minute: int) -> tuple[int, int] | None:
        for candidate in self.hours:
            if candidate < hour:
                continue
            floor = minute if candidate == hour else 0
            for found in self.minutes:
                if found >= floor:
                    return candidate, found
        return None


def parse_cron(text: str) -> Cron:
    """The schedule in ``text``; `InvalidInput` names the field that makes no sense."""
    fields = _NICKNAMES.get(text.strip().lower(), text).lower().split()
    if len(fields) != 5:
        raise InvalidInput(
            f"cron {text!r} has {len(fields)} fields: use minute hour day month weekday"
        )
    minute, hour, day, month, weekday = fields
    cron = Cron(
        text,
        tuple(sorted(_field(text, "minute", minute, 0, 59))),
        tuple(sorted(_field(text, "hour", hour, 0, 23))),
        frozenset(_field(text, "day", day, 1, 31)),
        frozenset(_field(text, "month", month, 1, 12, _MONTHS)),
        frozenset(value % 7 for value in _field(text, "weekday", weekday, 0, 7, _DAYS)),
        day.startswith("*"),
        weekday.startswith("*"),
    )
    cron.next_after(0)
    return cron


def _field(
    text: str, what: str, field: str, low: int, high: int, names: dict[str, int] | None = None
) -> set[int]:
    found: set[int] = set()
    for part in field.split(","):
        span, slash, step = part.partition("/")
        every = _number(text, what, step, 1, high) if slash else 1
        first, last = _span(text, what, span, low, high, names or {})
        if slash and first == last and span != "*":
            last = high
        found.update(range(first, last + 1, every))
    return found


def _span(
    text: str, what: str, span: str, low: int, high: int, names: dict[str, int]
) -> tuple[int, int]:
    if span == "*":
        # Weekdays run 0..7 so that 7 can mean Sunday; a star must not count it twice.
        return low, 6 if what == "weekday" else high
    first, dash, last = (names.get(word, word) for word in span.partition("-"))
    start = _number(text, what, first, low, high)
    stop = _number(text, what, last, low, high) if dash else start
    if stop < start:
        raise InvalidInput(f"cron {text!r}: {what} range {span!r} runs backwards")
    return start, stop


def _number(text: str, what: str, word: int | str, low: int, high: int) -> int:
    value = (
        word if isinstance(word, int) else int(word) if word.isascii() and word.isdigit() else -1
    )
    if not low <= value <= high:
        raise InvalidInput(f"cron {text!r}: {what} {word!r} is not within {low}-{high}")
    return value
