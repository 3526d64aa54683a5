"""``nexo pipeline check`` and ``flows``: users' code before it runs, and as it runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from nexo.cli import output
from nexo.cli.lake import spark_session
from nexo.cli.lake.lake_location import lake_options, open_lake
from nexo.cli.options import F, common
from nexo.cli.times import seconds
from nexo.extras import require

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from nexo.lake.catalog import Lake
    from nexo.lake.progress import FlowProgress
    from pyspark_nexo.code.beside import UserCode
    from pyspark_nexo.code.child import CodePlan

# ruff: noqa: PLC0415 - Spark and Arrow are slow to import, and optional


def code_options(function: F) -> F:
    """``--code``, ``--trigger``, ``--only`` and ``--full``."""
    for option in (
        click.option("--full", metavar="A,B", default="", help="First make these of your tables "
                     "anew, as nexo pipeline refresh does."),
        click.option("--only", metavar="A,B", default="", help="Of your tables, fill only these."),
        click.option("--trigger", "trigger_s", type=seconds(), default="10s", show_default=True,
                     help="How often your own flows run."),
        click.option("--code", type=click.Path(exists=True, file_okay=False, path_type=Path),
                     metavar="DIR", help="Fill your own tables, too: the folder of their Python "
                     "and SQL files."),
    ):  # fmt: skip
        function = option(function)
    return function


def plan_of(
    lake: Lake, code: Path, *, trigger_s: float, only: str, once: bool, full: str = ""
) -> CodePlan:
    """The task of the process that runs users' code."""
    from pyspark_nexo.code.child import CodePlan
    from pyspark_nexo.code.loading import code_folder

    code_folder(code)  # what is wrong with the folder itself is said at once
    where = lake.settings
    return CodePlan(
        str(code.resolve()), str(where.folder.absolute()), where.catalog, where.namespace,
        common().url, trigger_s, _names(only), once, _names(full),
    )  # fmt: skip


def _names(text: str) -> tuple[str, ...]:
    return tuple(name for part in text.split(",") if (name := part.strip()))


def beside(plan: CodePlan, spark: SparkSession) -> UserCode:
    """The process of users' code, on the Spark of a session."""
    from pyspark_nexo.code.beside import UserCode, shared

    return UserCode(shared(plan, spark), output.note)


def flow_line(flow: FlowProgress) -> str:
    """A flow in a line."""
    behind = f", {flow.behind:,} behind" if flow.behind else ""
    behind += f", {flow.waiting:,} changes wait to be merged" if flow.waiting else ""
    trouble = f": {flow.error}" if flow.error else ""
    return f"flow {flow.flow}: {flow.state}, {flow.rows:,} rows into {flow.target}{behind}{trouble}"


@click.command()
@click.option("--code", required=True, metavar="DIR",
              type=click.Path(exists=True, file_okay=False, path_type=Path),
              help="The folder of your Python and SQL files.")  # fmt: skip
@click.option("--master", metavar="URL", help="Where Spark runs; else this machine's cores.")
@spark_session.conf_option
@lake_options
def check(code: Path, master: str | None, conf: Mapping[str, str], **where: Any) -> None:
    """Load your code and plan its flows, without reading or writing a row."""
    require("spark")
    lake = open_lake(**where, make=True)
    plan = plan_of(lake, code, trigger_s=1.0, only="", once=True)
    output.note("starting Spark…")
    with spark_session.started(master, "nexo pipeline check", conf=conf) as spark:
        from pyspark_nexo.code.child import graph_of
        from pyspark_nexo.code.runner import described

        graph = graph_of(spark, plan, make=False)
        columns = ["flow", "fills", "kind", "reads", "columns", "place"]
        output.rows(described(graph), columns, "no flows")


@click.command()
@click.argument("tables", nargs=-1, required=True, metavar="TABLE…")
@click.option("--code", required=True, metavar="DIR",
              type=click.Path(exists=True, file_okay=False, path_type=Path),
              help="The folder of your Python and SQL files.")  # fmt: skip
@click.option("--from", "since", metavar="TIME", default="",
              help="Only of records from then on, such as 2026-11-01; else of all.")  # fmt: skip
@click.option("--to", "until", metavar="TIME", default="",
              help="Only of records before; running flows go on from there.")  # fmt: skip
@click.option("--master", metavar="URL", help="Where Spark runs; else this machine's cores.")
@spark_session.conf_option
@lake_options
def refresh(
    tables: tuple[str, ...],
    code: Path,
    since: str,
    until: str,
    master: str | None,
    conf: Mapping[str, str],
    **where: Any,
) -> None:
    """Make tables of your code anew, from the history of what they read.

    The old table is read and filled meanwhile. At the end the new one takes its name, all at once;
    the old one stays for a week as TABLE__until_<time>. Tables that read it as a stream come after
    it: nexo pipeline refresh --code DIR ORDERS ORDERS_BY_DAY.
    """
    require("spark")
    lake = open_lake(**where, make=True)
    plan = plan_of(lake, code, trigger_s=1.0, only="", once=True)
    plan = msgspec.structs.replace(plan, full=tables, only_full=True, since=since, until=until)
    output.note("starting Spark…")
    with spark_session.started(master, "nexo pipeline refresh", conf=conf) as spark:
        rows = beside(plan, spark).once()
    output.done(f"made {', '.join(tables)} anew, of {rows:,} rows", rows=rows)


@click.command()
@lake_options
def flows(**where: Any) -> None:
    """Show each flow of your code: its rows, how far behind, and why it stands still."""
    lake = open_lake(**where)
    from nexo.lake.progress import by_flow, read_progress

    columns = [
        "flow", "fills", "kind", "state", "rows", "dropped", "last_rows", "last_ms", "behind",
        "records", "files", "small_files", "waiting", "error",
    ]  # fmt: skip
    found = by_flow(read_progress(lake.settings.folder)).values()
    output.rows(_flow_rows(found), columns, "no flow has run: nexo pipeline run --code DIR")


def _flow_rows(found: Iterable[FlowProgress]) -> Iterator[dict[str, object]]:
    for each in found:
        yield {
            "flow": each.flow,
            "fills": each.target,
            "kind": each.kind,
            "reads": ", ".join(each.reads),
            "state": each.state,
            "rows": each.rows,
            "dropped": each.dropped,
            "broken": each.broken,
            "last_rows": each.last_rows,
            "last_ms": round(each.last_ms),
            "committed_ms": each.committed_ms,
            "behind": each.behind,
            "records": each.records,
            "files": each.files,
            "small_files": each.small_files,
            "waiting": each.waiting,
            "waiting_since_ms": each.waiting_since_ms,
            "place": each.place,
            "error": each.error,
        }


COMMANDS = (check, refresh, flows)
