"""What a query's filters leave of a stream: ranges of partitions, offsets and times.

They only make it read less: Spark applies the filters themselves to what was read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import reduce
from typing import Any

from pyspark.sql import datasource as spark

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_EQUAL = (spark.EqualTo, spark.EqualNullSafe)
_COMPARED = (
    *_EQUAL, spark.GreaterThan, spark.GreaterThanOrEqual, spark.LessThan, spark.LessThanOrEqual,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class NumberRange:
    """Whole numbers from ``first``, below ``end``; None is no limit."""

    first: int = 0
    end: int | None = None

    def __and__(self, other: NumberRange) -> NumberRange:
        ends = [end for end in (self.end, other.end) if end is not None]
        return NumberRange(max(self.first, other.first), min(ends, default=None))

    def __contains__(self, number: int) -> bool:
        return self.first <= number and (self.end is None or number < self.end)


EVERYTHING = NumberRange()


def number_ranges(filters: Iterable[spark.Filter]) -> Mapping[str, NumberRange]:
    """What all filters together leave, by column; times are in milliseconds."""
    found: dict[str, NumberRange] = {}
    for each in filters:
        name, limits = _number_range(each)
        if limits is not None:
            found[name] = found.get(name, EVERYTHING) & limits
    return found


def _number_range(each: spark.Filter) -> tuple[str, NumberRange | None]:
    """The column and the range that a filter leaves; None if it narrows nothing here."""
    if not isinstance(each, (*_COMPARED, spark.In)) or len(each.attribute) != 1:
        return "", None
    name = each.attribute[0]
    if isinstance(each, spark.In):
        around = [_between(name, value, value) for value in each.value]
        return name, _hull(around)
    value = each.value
    match each:
        case spark.GreaterThan() | spark.GreaterThanOrEqual():
            return name, _between(name, value, None, isinstance(each, spark.GreaterThan))
        case spark.LessThan() | spark.LessThanOrEqual():
            return name, _between(name, None, value, isinstance(each, spark.LessThan))
    return name, _between(name, value, value)


def _hull(found: list[NumberRange | None]) -> NumberRange | None:
    known = [each for each in found if each is not None]
    if not known or len(known) < len(found):
        return None
    return reduce(
        lambda a, b: NumberRange(min(a.first, b.first), max(a.end or 0, b.end or 0)), known
    )


def _between(name: str, low: Any, high: Any, strict: bool = False) -> NumberRange | None:
    """Values from ``low`` to ``high``, without these if ``strict``; None is open."""
    unit = 1_000 if name == "timestamp" else 1
    lowest, highest = _number(name, low), _number(name, high)
    if lowest is None and highest is None:
        return None
    first = 0 if lowest is None else lowest // unit + 1 if strict else -(-lowest // unit)
    end = None if highest is None else -(-highest // unit) if strict else highest // unit + 1
    return NumberRange(max(first, 0), None if end is None else max(end, 0))


def _number(name: str, value: Any) -> int | None:
    """Offsets and partitions as they are, times in microseconds; None for anything else."""
    if name == "timestamp" and isinstance(value, datetime) and value.tzinfo is not None:
        return (value - _EPOCH) // _MICROSECOND
    if name in ("partition", "offset") and isinstance(value, int):
        return value
    return None
