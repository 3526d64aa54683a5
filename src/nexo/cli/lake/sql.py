"""``nexo sql``: Spark SQL over streams and their history."""

from __future__ import annotations

import sys
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from nexo.cli import output
from nexo.cli.lake import sparks
from nexo.cli.lake import sql_cells as cells
from nexo.cli.lake.lakes import lake_options, open_lake
from nexo.cli.options import terms
from nexo.cli.sizes import moment

if TYPE_CHECKING:
    from nexo.lake.catalog import Lake

# ruff: noqa: PLC0415 - Spark and Arrow are slow to import, and optional


@click.command()
@click.argument("query")
@click.option("--csv", "as_csv", is_flag=True,
              help="Print comma-separated values with a header: nothing for null, "
              "\"\" for the empty string.")  # fmt: skip
@click.option("--limit", type=click.IntRange(min=1), default=1_000, show_default=True,
              help="At most so many rows.")  # fmt: skip
@click.option("--streams", default="", metavar="A,B", help="Make views of these only.")
@click.option("--as-of", metavar="TIME", type=moment,
              help="Leave out what was published later: a time (UTC unless it says otherwise) "
              "or an age, such as 2h.")  # fmt: skip
@click.option("--master", metavar="URL", help="Where Spark runs; else this machine's cores.")
@lake_options
def command(
    query: str,
    as_csv: bool,
    limit: int,
    streams: str,
    as_of: datetime | None,
    master: str | None,
    **where: Any,
) -> None:
    """Run QUERY on streams: their hot log and their history in the lake, each record once.

    Views: stream_messages, stream_offsets, stream_groups, and one of the name of each stream.
    Times are shown in UTC, as queries see them.
    """
    if as_csv and terms().as_json:
        raise click.UsageError("give either --csv or --json, not both")
    names = [name for part in streams.split(",") if (name := part.strip())]
    columns, rows = _run(query, limit + 1, names, as_of, master, open_lake(**where))
    shown = rows[:limit]
    if as_csv:
        sys.stdout.write(cells.csv_line(columns))
        sys.stdout.writelines(cells.csv_line(map(cells.field, row)) for row in shown)
    else:
        labels = list(cells.apart(columns))
        convert = cells.plain_json if terms().as_json else cells.field
        found = [dict(zip(labels, map(convert, row), strict=True)) for row in shown]
        output.rows(found, labels, "no rows", literal=True)
    if len(rows) > limit:
        output.note(f"only the first {limit:,} rows are shown: --limit shows more")


def _run(
    query: str,
    limit: int,
    streams: list[str],
    as_of: datetime | None,
    master: str | None,
    lake: Lake,
) -> tuple[list[str], list[tuple[Any, ...]]]:
    sparks.tell_start()
    with sparks.started(master, "nexo sql", quiet=True) as spark:
        from pyspark_nexo.failures import plain_errors
        from pyspark_nexo.views import register_views

        with sparks.shown(spark, "query"), plain_errors():
            register_views(spark, lake, terms().url, streams=streams or None, as_of=as_of)
            frame = spark.sql(query).limit(limit)
            zoneless = {
                number
                for number, field in enumerate(frame.schema)
                if field.dataType.typeName() == "timestamp_ntz"
            }
            return frame.columns, [cells.read(row, zoneless) for row in frame.collect()]
