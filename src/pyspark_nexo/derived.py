"""Derived tables, updated by Spark jobs: dead letters, and the newest record per key."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING

from nexo.lake.catalog import Lake, StreamId
from nexo.lake.commit import LostRace
from nexo.lake.derived import dead_letters, latest
from nexo.lake.progress import MicroBatchResult, total
from pyspark_nexo.tiering import Probe, TaskGroup, run_tasks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def collect_dead_letters(spark: SparkSession, lake: Lake, stream: StreamId, probe: Probe) -> int:
    """Bring a stream's table of dead letters up to date; returns how many there are."""
    while planned := dead_letters.plan(lake, stream):
        table, steps = planned
        work = TaskGroup(dead_letters.run, steps)
        probe("before the dead letters")
        with suppress(LostRace):
            dead_letters.finish(table, steps, run_tasks(spark, work))
    return sum(dead_letters.count(lake, stream).values())


def compact(
    spark: SparkSession, lake: Lake, stream: StreamId
) -> tuple[MicroBatchResult, int] | None:
    """Bring a stream's table of newest records up to date; None if it already is.

    Returns what was written, and how many records the table has now.
    """
    started_s = time.monotonic()
    table, steps = latest.plan(lake, stream)
    if not steps:
        return None
    written = run_tasks(spark, TaskGroup(latest.run, steps))
    with suppress(LostRace):
        latest.finish(table, steps, written)
    files = [facts for each in written for facts in each]
    rows, seconds = sum(facts.count for facts in files), time.monotonic() - started_s
    result = MicroBatchResult(f"{stream.name}_latest", rows, len(files), seconds)
    return result, total(table.refresh(), "total-records")
