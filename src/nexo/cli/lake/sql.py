"""``nexo sql``: SQL over streams and their history, with DuckDB or with Spark."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from nexo.cli import output
from nexo.cli.lake import sql_cells as cells
from nexo.cli.lake.lake_location import lake_options, open_lake, server_address
from nexo.cli.lake.sql_prompt import prompt
from nexo.cli.options import common, limit_option
from nexo.cli.times import moment
from nexo.errors import ConfigError, NexoError
from nexo.extras import hint

if TYPE_CHECKING:
    from nexo.lake.catalog import Lake

# ruff: noqa: PLC0415 - Spark, DuckDB and Arrow are slow to import, and optional

QueryRows = tuple[list[str], list[tuple[Any, ...]]]


@click.command()
@click.argument("query", required=False)
@click.option("--csv", "as_csv", is_flag=True,
              help="Print comma-separated values with a header: nothing for null, "
              "\"\" for the empty string.")  # fmt: skip
@limit_option(1_000)
@click.option("--streams", default="", metavar="A,B", help="Make views of these only.")
@click.option("--as-of", metavar="TIME", type=moment,
              help="Leave out what was published later: a time (UTC unless it says otherwise) "
              "or an age, such as 2h.")  # fmt: skip
@click.option("--engine", type=click.Choice(["duckdb", "spark"]), default=None,
              help="What runs the query: DuckDB in this process, or Spark for scale. "
              "Default: duckdb, but spark with --master.")  # fmt: skip
@click.option("--master", metavar="URL", help="Where Spark runs; else this machine's cores.")
@lake_options
def command(
    query: str | None,
    as_csv: bool,
    limit: int,
    streams: str,
    as_of: datetime | None,
    engine: str | None,
    master: str | None,
    **where: Any,
) -> None:
    """Run QUERY on streams: their hot log and their history in the lake, each record once.

    Views: stream_messages, stream_offsets, stream_groups, and one of the name of each stream.
    Times are shown in UTC, as queries see them. Without QUERY, queries are read from standard
    input: one by one at a prompt if that is a terminal.
    """
    if as_csv and common().as_json:
        raise click.UsageError("give either --csv or --json, not both")
    if master and engine == "duckdb":
        raise click.UsageError("--master is for Spark: leave out --engine duckdb")
    names = [name for part in streams.split(",") if (name := part.strip())]
    with_spark = engine == "spark" or (engine is None and master is not None)
    lake = open_lake(**where)
    opened = _spark(master, lake, names, as_of) if with_spark else _duckdb(lake, names, as_of)
    with opened as runner:
        for text in prompt(runner.names) if query is None else [query]:
            _answer(runner, text, limit, as_csv, raises=query is not None)


def _answer(runner: QueryEngine, text: str, limit: int, as_csv: bool, *, raises: bool) -> None:
    """Print what a query returns; at a prompt a bad one is no reason to end."""
    try:
        columns, rows = runner.query(text, limit + 1)
    except NexoError as error:
        if raises or not sys.stdin.isatty():
            raise
        output.note(f"error[{error.code}]: {error.message}")
        return
    _print(columns, rows[:limit], as_csv)
    if len(rows) > limit:
        output.note(f"only the first {limit:,} rows are shown: --limit shows more")


def _print(columns: list[str], shown: list[tuple[Any, ...]], as_csv: bool) -> None:
    if as_csv:
        sys.stdout.write(cells.csv_line(columns))
        sys.stdout.writelines(cells.csv_line(map(cells.field, row)) for row in shown)
        return
    labels = list(cells.apart(columns))
    convert = cells.plain_json if common().as_json else cells.field
    found = [dict(zip(labels, map(convert, row), strict=True)) for row in shown]
    output.rows(found, labels, "no rows", literal=True)


@dataclass(frozen=True, slots=True)
class QueryEngine:
    """Runs queries."""

    query: Callable[[str, int], QueryRows]
    """The columns and at most this many rows of what a query returns."""
    names: Callable[[], list[str]]
    """Views that a query may name."""


@contextmanager
def _duckdb(lake: Lake, streams: list[str], as_of: datetime | None) -> Iterator[QueryEngine]:
    gc.disable()  # what is imported stays, and looking for garbage takes a tenth of the time
    try:
        from nexo.sql.engine import Engine
    except ImportError as error:
        raise ConfigError(hint(str(error.name), "sql")) from None
    finally:
        gc.freeze()
        gc.enable()
    engine = Engine(lake, server_address())

    def query(text: str, limit: int) -> QueryRows:
        found = engine.query(text, limit=limit, streams=streams or None, as_of=as_of)
        return found.columns, [cells.zoned(row) for row in found.rows()]

    yield QueryEngine(query, engine.names)


@contextmanager
def _spark(
    master: str | None, lake: Lake, streams: list[str], as_of: datetime | None
) -> Iterator[QueryEngine]:
    if sys.stderr.isatty():  # somebody waits, and it takes seconds
        output.note("starting Spark…")
    from nexo.cli.lake import spark_session
    from pyspark_nexo.failures import plain_errors
    from pyspark_nexo.views import register_views

    with spark_session.started(master, "nexo sql", quiet=True) as spark:

        def query(text: str, limit: int) -> QueryRows:
            with spark_session.shown(spark, "query"), plain_errors():
                register_views(spark, lake, common().url, streams=streams or None, as_of=as_of)
                frame = spark.sql(text).limit(limit)
                zoneless = {
                    number
                    for number, field in enumerate(frame.schema)
                    if field.dataType.typeName() == "timestamp_ntz"
                }
                return frame.columns, [cells.read(row, zoneless) for row in frame.collect()]

        yield QueryEngine(query, lambda: [table.name for table in spark.catalog.listTables()])
