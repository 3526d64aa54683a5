"""``nexo pipeline``: streams into the lake with Spark, and what is there."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from nexo.cli import output
from nexo.cli.lake import contract, spark_session, user_code
from nexo.cli.lake.lake_location import lake_options, open_lake
from nexo.cli.options import common
from nexo.cli.times import seconds
from nexo.client.worker_processes import ProcessStopSignal
from nexo.errors import Conflict, NexoError
from nexo.extras import require
from nexo.server.processes.system import yield_to_brokers

if TYPE_CHECKING:
    from nexo.lake.catalog import Lake
    from nexo.lake.progress import MicroBatchResult, PipelineProgress
    from pyspark_nexo.pipeline import Pipeline

# ruff: noqa: PLC0415 - Spark and Arrow are slow to import, and optional

_SAFE_GRACE_S = 600
"""Longer than any micro-batch takes from its first file to its commit."""


@click.group()
def command() -> None:
    """Move streams into the lake with Spark: Parquet files of Iceberg tables."""


@command.command()
@click.option("--once", is_flag=True, help="Take what is there now, then end.")
@click.option("--continuous", is_flag=True, help="Go on until stopped; the default.")
@click.option(
    "--every",
    "every_s",
    type=seconds(),
    default="1s",
    show_default=True,
    help="Pause between micro-batches.",
)
@click.option(
    "--lag",
    "lags",
    multiple=True,
    metavar="[STREAM=]TIME[,ROWS]",
    help="How late streams may be in the lake, all or one: 10s, orders=1m,100000 (whichever of "
    "time and rows comes first). Fewer, larger files. Default: as little as possible.",
)
@click.option("--streams", default="", metavar="A,B", help="Only these; else all with tiering on.")
@click.option("--master", metavar="URL", help="Where Spark runs; else this machine's cores.")
@spark_session.conf_option
@click.option("--attached", is_flag=True, hidden=True, help="End with the process above.")
@click.option("--no-maintenance", is_flag=True, help="Leave merging and expiry to someone else.")
@user_code.code_options
@lake_options
def run(
    once: bool,
    continuous: bool,
    every_s: float,
    lags: tuple[str, ...],
    streams: str,
    master: str | None,
    conf: Mapping[str, str],
    attached: bool,
    no_maintenance: bool,
    code: Path | None,
    trigger_s: float,
    only: str,
    full: str,
    **where: Any,
) -> None:
    """Take streams into the lake, and fill your own tables."""
    if once and continuous:
        raise click.UsageError("give either --once or --continuous, not both")
    require("spark")
    paces = _lags(lags)
    if attached:
        yield_to_brokers()
    lake = open_lake(**where, make=True)
    plan = None
    if code is not None:
        plan = user_code.plan_of(lake, code, trigger_s=trigger_s, only=only, once=once, full=full)
    elif only or full:
        raise click.UsageError("--only and --full name tables of --code DIR")
    with _pipeline(lake, streams, master, conf) as pipeline:
        if not pipeline.names():
            output.note("no stream has tiering on yet: nexo stream update NAME --tiering")
        if once:
            with spark_session.shown(pipeline.spark, "taking"):
                total = pipeline.run_once(_report)
                for progress in pipeline.compact(pipeline.names()):
                    _report(progress)
            if plan is None:
                output.done(f"took {total:,} records", records=total)
                return
            rows = user_code.beside(plan, pipeline.spark).once()
            done = f"took {total:,} records, wrote {rows:,} rows of your tables"
            output.done(done, records=total, rows=rows)
        else:
            stop = _stop_event(attached)
            with nullcontext() if plan is None else user_code.beside(plan, pipeline.spark):
                _run_on(pipeline, every_s, paces, stop, maintained=not no_maintenance)


def _stop_event(attached: bool) -> threading.Event:
    stop, asked = threading.Event(), ProcessStopSignal(signal.SIGTERM)
    threading.Thread(target=_stop_when_asked, args=(asked, stop), daemon=True).start()
    if attached:
        threading.Thread(target=_stop_with_parent, args=(os.getppid(), stop), daemon=True).start()
    return stop


def _stop_when_asked(asked: ProcessStopSignal, stop: threading.Event) -> None:
    asked.wait()
    stop.set()


def _stop_with_parent(parent: int, stop: threading.Event) -> None:
    while os.getppid() == parent:
        if stop.wait(1.0):
            return
    stop.set()


def _lags(given: Sequence[str]) -> dict[str, tuple[float, int | None]]:
    """Target lags by stream, ``""`` for all: seconds, and rows if they were given."""
    found = {}
    for text in given:
        stream, _, lag = text.rpartition("=")
        time, comma, rows = lag.partition(",")
        if comma and not (rows.isascii() and rows.isdigit() and int(rows)):
            raise click.BadParameter(f"{text!r}: rows are a positive number, as in 10s,100000")
        found[stream] = seconds()(time), int(rows) if comma else None
    return found


def _run_on(
    pipeline: Pipeline,
    every_s: float,
    lags: dict[str, tuple[float, int | None]],
    stop: threading.Event,
    *,
    maintained: bool,
) -> None:
    from pyspark_nexo.continuous import Continuous
    from pyspark_nexo.pace import Lag, Pace

    known = {stream: Lag(*lag) for stream, lag in lags.items()}
    pace = Pace(known.pop("", Lag()), known)
    Continuous(pipeline, every_s, maintained=maintained, pace=pace).run(stop, _report, output.note)


@contextmanager
def _pipeline(
    lake: Lake, streams: str, master: str | None, conf: Mapping[str, str]
) -> Iterator[Pipeline]:
    names = [name for part in streams.split(",") if (name := part.strip())]
    output.note("starting Spark…")
    with spark_session.started(master, "nexo pipeline", conf=conf) as spark:
        from pyspark_nexo.pipeline import Pipeline

        yield Pipeline(spark, lake, common().url, names)


def _report(progress: MicroBatchResult) -> None:
    if progress.lost:
        output.note(f"{progress.stream}: not committed: {progress.lost}")
    else:
        output.note(
            f"{progress.stream}: {progress.rows:,} records in {progress.files} files, "
            f"{progress.seconds:.2f} s"
        )


@command.command()
@lake_options
def status(**where: Any) -> None:
    """Show how far each stream is in the lake, and how far behind."""
    lake = open_lake(**where)
    from nexo.lake.progress import by_flow, read_progress
    from pyspark_nexo.status import status as find

    seen = read_progress(lake.settings.folder)
    for each in seen:
        output.note(_line(each))
    for flow in by_flow(seen).values():
        output.note(user_code.flow_line(flow))
    columns = [
        "stream", "partition", "lake_offset", "hot_start", "hot_end", "behind", "missing",
        "dead_letters", "error",
    ]  # fmt: skip
    output.rows(find(lake, common().url), columns, "no stream has tiering on")


def _line(pipeline: PipelineProgress) -> str:
    taken = sum(stream.taken for stream in pipeline.streams)
    from nexo.lake.progress import now_ms

    state = "running" if pipeline.alive(now_ms()) else "ended"
    trouble = f", last error: {pipeline.error}" if pipeline.error else ""
    pace = ""
    if pipeline.fresh_every_ms is not None:
        pace = f", {len(pipeline.streams):,} streams every {pipeline.fresh_every_ms / 1000:.1f} s"
    return f"pipeline {pipeline.id}: {state}, took {taken:,} records{pace}{trouble}"


@command.command()
@click.option(
    "--grace",
    "grace_s",
    type=seconds(),
    default="1h",
    show_default=True,
    help="Keep unused files this long.",
)
@click.option("--snapshots", type=click.IntRange(min=1),
              help="Keep this many of each table, whatever it says; otherwise 100.")  # fmt: skip
@lake_options
def maintain(grace_s: float, snapshots: int | None, **where: Any) -> None:
    """Merge small files, expire old snapshots, delete what nothing needs any more."""
    lake = open_lake(**where)
    from nexo.lake.folder.swapping import drop_expired
    from nexo.lake.maintenance import maintain as maintenance
    from nexo.lake.progress import now_ms, read_progress
    from nexo.lake.writing.staging import sweep_staging

    busy = [each.id for each in read_progress(lake.settings.folder) if each.alive(now_ms())]
    if busy and grace_s < _SAFE_GRACE_S:
        raise Conflict(
            f"pipeline {busy[0]} is running and may be writing files that no table names yet: "
            "stop it first, or give --grace 10m or more"
        )
    care = maintenance.Care(max_snapshots=snapshots, grace_s=grace_s)
    reports, refused = list[maintenance.Report](), list[NexoError]()
    try:
        for table in lake.kept():
            try:
                reports.append(maintenance.maintain(table, care))
            except NexoError as error:
                refused.append(error)
    except NexoError as error:  # of tables that cannot be read
        refused.append(error)
    columns = [
        "table", "merged_files", "merged_into", "expired_snapshots", "deleted_files",
        "waiting_files",
    ]  # fmt: skip
    output.rows(
        [asdict(report) for report in reports], columns, "" if refused else "the lake has no tables"
    )
    sweep_staging(lake.settings)
    drop_expired(lake, now_ms())
    for each in refused:
        raise each


for _each in (*contract.COMMANDS, *user_code.COMMANDS):
    command.add_command(_each)
