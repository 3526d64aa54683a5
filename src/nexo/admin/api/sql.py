"""SQL over streams and their history, with the permissions of the caller."""

from __future__ import annotations

import time
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from nexo.admin import queries
from nexo.admin.context import ApiContext
from nexo.admin.http.routes import ApiRoutes
from nexo.admin.queries import QueryColumn
from nexo.errors import Forbidden
from nexo.extras import require
from nexo.lake.tables import GENERAL_VIEWS, table_name
from nexo.model import Broker

routes = ApiRoutes("SQL", "/sql")

MOST_ROWS = 10_000
MOST_S = 300.0


class SqlQuery(msgspec.Struct, forbid_unknown_fields=True):
    """A query, and how much it may take."""

    query: Annotated[str, Meta(min_length=1, max_length=100_000)]
    limit: Annotated[int, Meta(ge=1, le=MOST_ROWS)] = 1_000
    """The most rows of the reply."""
    timeout_s: Annotated[float, Meta(ge=0.1, le=MOST_S)] = 30.0
    as_of_ms: Annotated[int, Meta(ge=0, le=1 << 53)] | None = None
    """Leave out what was published later."""
    plan: bool = False
    """Tell how the query would run instead of running it."""


class SqlResult(msgspec.Struct):
    """Rows of a query; times are in UTC."""

    columns: list[QueryColumn]
    rows: list[list[Any]]
    more: bool
    """The query has more rows than the limit."""
    plan: str
    took_ms: float


class SqlViewsAsk(msgspec.Struct, forbid_unknown_fields=True):
    """Which views to list."""

    search: str = ""
    """Part of a stream's name."""
    limit: Annotated[int, Meta(ge=1, le=1_000)] = 100


class SqlView(msgspec.Struct):
    """A view that a query may name."""

    name: str
    stream: str
    """Whose records it has; empty for a view over all streams."""


class SqlViews(msgspec.Struct):
    """The views over all streams, then one per stream."""

    views: list[SqlView]
    total: int


@routes.get("/views")
async def views(context: ApiContext, ask: SqlViewsAsk) -> SqlViews:
    """The views that queries of this caller may name."""
    found = [name for name in await context.client.streams() if ask.search in name]
    general = [SqlView(name, "") for name in sorted(GENERAL_VIEWS)]
    named = [SqlView(table_name(name), name) for name in found[: ask.limit]]
    return SqlViews([*general, *named], len(general) + len(found))


@routes.post("/query", waits=True)
async def query(context: ApiContext, ask: SqlQuery) -> SqlResult:
    """Run a query over streams, their hot log and their history; leaving ends it."""
    if await context.visible(Broker.STREAM) == frozenset():
        raise Forbidden("there is no stream that you may read")
    require("sql")  # at once: a process that finds out takes its time to start
    began_s = time.perf_counter()
    question = queries.question(context, ask.query, ask.limit, ask.as_of_ms, ask.plan)
    answer = await queries.answer(question, ask.timeout_s)
    took_ms = round((time.perf_counter() - began_s) * 1000, 1)
    return SqlResult(answer.columns, answer.rows, answer.more, answer.plan, took_ms)
