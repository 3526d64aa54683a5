"""Tables made from streams' tables by Spark jobs: dead letters, and the newest record per key."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nexo.lake.catalog import Lake, StreamId
from nexo.lake.commit import LostRace
from nexo.lake.derived import dead_letters, latest
from nexo.lake.progress import total
from pyspark_nexo.tiering import Probe, TaskGroup, run_tasks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def collect_dead_letters(spark: SparkSession, lake: Lake, stream: StreamId, probe: Probe) -> int:
    """Bring a stream's table of dead letters up to its table; returns how many there are."""
    while planned := dead_letters.plan(lake, stream):
        table, steps = planned
        work = TaskGroup(dead_letters.run, steps)
        probe("before the dead letters")
        with suppress(LostRace):
            dead_letters.finish(table, steps, run_tasks(spark, work))
    return sum(dead_letters.count(lake, stream).values())


@dataclass(frozen=True, slots=True)
class Compacted:
    """What was written to a table of newest records, and how many it has now."""

    rows: int
    files: int
    records: int
    seconds: float


def compact(spark: SparkSession, lake: Lake, stream: StreamId) -> Compacted | None:
    """Bring a stream's table of newest records up to its table; None if it is."""
    started_s = time.monotonic()
    table, steps = latest.plan(lake, stream)
    if not steps:
        return None
    written = run_tasks(spark, TaskGroup(latest.run, steps))
    with suppress(LostRace):
        latest.finish(table, steps, written)
    return Compacted(
        sum(facts.count for files in written for facts in files),
        sum(map(len, written)),
        total(table.refresh(), "total-records"),
        time.monotonic() - started_s,
    )
