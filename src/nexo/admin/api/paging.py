"""Pages: every list is cut, and says how to go on."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Annotated, TypeAlias, TypeVar

import msgspec

T = TypeVar("T")

Limit: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=500)]
Skip: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
Search: TypeAlias = Annotated[str, msgspec.Meta(max_length=1_024)]
Name: TypeAlias = Annotated[str, msgspec.Meta(min_length=1, max_length=255)]
JobKey: TypeAlias = Annotated[str, msgspec.Meta(max_length=1_024)]
Priority: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=255)]
Wait: TypeAlias = Annotated[float, msgspec.Meta(ge=0, le=60)]
"""Seconds that a reply may take."""
Seconds: TypeAlias = Annotated[float, msgspec.Meta(ge=0, le=10**10)]
Millis: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=253_402_300_799_000)]
"""A point in time, up to the last second of the year 9999, where dates end."""
Offsets: TypeAlias = Annotated[str, msgspec.Meta(pattern=r"^[0-9]+(,[0-9]+)*$", max_length=8_192)]
"""One per partition."""


def matching(rows: Iterable[T], search: str, text: Callable[[T], str]) -> list[T]:
    """The rows whose text holds ``search``, whatever the case."""
    wanted = search.casefold()
    return [row for row in rows if wanted in text(row).casefold()] if wanted else list(rows)
