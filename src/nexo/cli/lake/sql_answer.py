"""Answers one query of `nexo.admin.queries`: a question on standard input, its answer on output.

The query is a single SELECT. It runs with bounded memory, and DuckDB may open no file but those of
the streams that the query names, nor change its settings.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from nexo.admin.queries import QueryAnswer, QueryColumn, QueryQuestion
from nexo.cli import cells
from nexo.cli.lake.sql_cells import field, plain_json, zoned
from nexo.errors import ConfigError, NexoError
from nexo.extras import hint
from nexo.lake.settings import LakeSettings
from nexo.limits import HTTP_QUERY_MEMORY_BYTES, HTTP_QUERY_REPLY_BYTES

if TYPE_CHECKING:
    from nexo.sql.result import Result

# ruff: noqa: PLC0415 - DuckDB and Arrow are slow to import, and optional

_EXACT = 1 << 53
"""Whole numbers beyond this lose digits in a browser, so they travel as text."""
_encode = msgspec.json.Encoder(enc_hook=cells.plain).encode


def main() -> None:
    """Read the question, write the answer."""
    asked = msgspec.json.decode(sys.stdin.buffer.read(), type=QueryQuestion)
    try:
        answer = _answer(asked)
    except NexoError as error:
        answer = QueryAnswer(code=error.code, message=error.message)
    sys.stdout.buffer.write(_encode(answer))


def _answer(asked: QueryQuestion) -> QueryAnswer:
    try:
        from nexo.lake.catalog import Lake
        from nexo.sql.engine import Engine
    except ImportError as error:
        raise ConfigError(hint(str(error.name), "sql")) from None
    where = LakeSettings(Path(asked.lake_folder), asked.lake_catalog)
    engine = Engine(
        Lake(where) if where.exists else None,
        asked.address,
        {"memory_limit": f"{HTTP_QUERY_MEMORY_BYTES}B"},
        confined=True,
    )
    as_of = None if asked.as_of_ms is None else datetime.fromtimestamp(asked.as_of_ms / 1000, UTC)
    if asked.plan:
        return QueryAnswer(plan=engine.plan(asked.query, as_of=as_of))
    return _shown(engine.query(asked.query, limit=asked.limit + 1, as_of=as_of), asked.limit)


def _shown(found: Result, limit: int) -> QueryAnswer:
    schema = found.table.schema
    columns = [QueryColumn(each.name, str(each.type)) for each in schema]
    rows, size = list[list[Any]](), 0
    for row in found.rows()[:limit]:
        shown = list(_cells(zoned(row)))
        size += len(_encode(shown))
        if size > HTTP_QUERY_REPLY_BYTES:
            break
        rows.append(shown)
    return QueryAnswer(columns, rows, len(rows) < len(found))


def _cells(row: tuple[Any, ...]) -> Iterator[Any]:
    for item in row:
        if isinstance(item, bytes):
            yield field(item)
        elif isinstance(item, int) and abs(item) > _EXACT:
            yield str(item)
        else:
            yield plain_json(item)


if __name__ == "__main__":
    main()
