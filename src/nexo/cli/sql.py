"""``nexo sql``: Spark SQL over streams and their history."""

from __future__ import annotations

import csv
import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from nexo.cli import output, sparks
from nexo.cli.lakes import lake_options, open_lake
from nexo.cli.options import terms

if TYPE_CHECKING:
    from nexo.lake.catalog import Lake

# ruff: noqa: PLC0415 - Spark and Arrow are slow to import, and optional


@click.command()
@click.argument("query")
@click.option("--csv", "as_csv", is_flag=True, help="Print comma-separated values with a header.")
@click.option("--limit", type=click.IntRange(min=1), default=1_000, show_default=True,
              help="At most so many rows.")  # fmt: skip
@click.option("--streams", default="", metavar="A,B", help="Make views of these only.")
@click.option("--as-of", type=click.DateTime(), help="Leave out what was published later (UTC).")
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
    """
    names = [name for part in streams.split(",") if (name := part.strip())]
    moment = as_of.replace(tzinfo=UTC) if as_of else None
    columns, rows = _run(query, limit, names, moment, master, open_lake(**where))
    if as_csv:
        writer = csv.writer(sys.stdout)
        writer.writerow(columns)
        writer.writerows([row[column] for column in columns] for row in rows)
    else:
        output.rows(rows, columns, "no rows", literal=True)


def _run(
    query: str,
    limit: int,
    streams: list[str],
    as_of: datetime | None,
    master: str | None,
    lake: Lake,
) -> tuple[list[str], list[dict[str, object]]]:
    sparks.tell_start()
    with sparks.started(master, "nexo sql", quiet=True) as spark:
        from pyspark_nexo.failures import plain_errors
        from pyspark_nexo.views import register_views

        with sparks.shown(spark, "query"), plain_errors():
            register_views(spark, lake, terms().url, streams=streams or None, as_of=as_of)
            frame = spark.sql(query).limit(limit)
            found = [row.asDict(recursive=True) for row in frame.collect()]
            return frame.columns, found
