"""Pages of lists, and types of parameters that endpoints share."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Annotated, TypeAlias, TypeVar

import msgspec

T = TypeVar("T")

Limit: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=500)]
Skip: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
Search: TypeAlias = Annotated[str, msgspec.Meta(max_length=1_024)]
Name: TypeAlias = Annotated[
    str,
    msgspec.Meta(
        min_length=1,
        max_length=255,
        extra_json_schema={"pattern": r"^(?!/)(?!(.*/)?\.\.?(/|$))[A-Za-z0-9._:/-]+$"},
    ),
]
"""A name that `check_name` allows; its errors are better than those of a pattern."""
JobKey: TypeAlias = Annotated[str, msgspec.Meta(max_length=1_024)]
Priority: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=255)]
WaitSeconds: TypeAlias = Annotated[float, msgspec.Meta(ge=0, le=60)]
"""Seconds that a reply may take."""
Seconds: TypeAlias = Annotated[float, msgspec.Meta(ge=0, le=10**10)]
EpochMillis: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=253_402_300_799_000)]
"""A point in time, up to the last second of the year 9999, where dates end."""
OffsetList: TypeAlias = Annotated[
    str, msgspec.Meta(pattern=r"^[0-9]+(,[0-9]+)*$", max_length=8_192)
]
"""One per partition."""


class SearchAsk(msgspec.Struct, forbid_unknown_fields=True):
    """Which rows."""

    search: Search = ""
    limit: Limit = 100
    offset: Skip = 0


def matching(rows: Iterable[T], search: str, text: Callable[[T], str]) -> list[T]:
    """The rows whose text contains ``search``, ignoring case."""
    wanted = search.casefold()
    return [row for row in rows if wanted in text(row).casefold()] if wanted else list(rows)


def page(rows: Iterable[T], ask: SearchAsk, text: Callable[[T], str]) -> tuple[list[T], int]:
    """The matching rows that are asked for, and how many match."""
    found = matching(rows, ask.search, text)
    return found[ask.offset : ask.offset + ask.limit], len(found)
