"""The table of endpoints: one entry gives the route, its checks and its place in OpenAPI.

An endpoint is ``async def name(context, ask) -> reply``. The type of ``ask`` says what it takes:
query parameters for GET, a JSON body for POST. GET only reads; POST acts. Names of things may
hold ``/`` and are therefore never part of a path.

Pages, and parameters that many endpoints have, are here too.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeAlias, TypeVar, get_type_hints

import msgspec

from nexo.admin.context import ApiContext

Method: TypeAlias = Literal["GET", "POST"]
Run: TypeAlias = Callable[[ApiContext, Any], Awaitable[Any]]
Feed: TypeAlias = Callable[[ApiContext, Any], AsyncIterator[Any]]
R = TypeVar("R", bound=Callable[..., Any])

PREFIX = "/api/v1"


class Nothing(msgspec.Struct, forbid_unknown_fields=True):
    """No parameters."""


class ChangeCount(msgspec.Struct):
    """The request was carried out."""

    count: int = 1
    """The number of changed things."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One row of the table."""

    method: Method
    path: str
    tag: str
    summary: str
    takes: Any
    gives: Any
    run: Run | Feed
    live: bool = False
    """Answers with server-sent events, each one a ``gives``."""
    waits: bool = False
    """May wait for data, and ends early if the caller leaves."""


@dataclass(frozen=True, slots=True)
class LiveEvent:
    """A row of a live endpoint, and where to resume after it."""

    data: Any
    id: str


class ApiRoutes:
    """The endpoints of one part of the API."""

    def __init__(self, tag: str, path: str = "") -> None:
        self.tag = tag
        self.table: list[Endpoint] = []
        self._path = PREFIX + path

    def get(self, path: str, *, waits: bool = False) -> Callable[[R], R]:
        """Decorator: a GET endpoint."""
        return self._add("GET", path, waits=waits)

    def post(self, path: str, *, waits: bool = False) -> Callable[[R], R]:
        """Decorator: a POST endpoint."""
        return self._add("POST", path, waits=waits)

    def live(self, path: str) -> Callable[[R], R]:
        """Decorator: a GET endpoint that sends events, an async generator."""
        return self._add("GET", path, live=True)

    def _add(
        self, method: Method, path: str, *, live: bool = False, waits: bool = False
    ) -> Callable[[R], R]:
        def register(run: R) -> R:
            hints = get_type_hints(run)
            gives = hints["return"].__args__[0] if live else hints["return"]
            summary = (run.__doc__ or "").strip().partition("\n")[0]
            where = self._path + path
            self.table.append(
                Endpoint(method, where, self.tag, summary, hints["ask"], gives, run, live, waits)
            )
            return run

        return register


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
