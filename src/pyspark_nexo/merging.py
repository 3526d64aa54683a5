"""Merging of the lake's files on the executors of a cluster (SPEC P6).

The driver plans from manifests; tasks write the merged files, each a few files of one table; each
table gets one commit. A quarter of the slots works at it, so that ingest has the others. Tasks that
die leave files that nothing names, which the sweep removes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from nexo.errors import NexoError
from nexo.lake.catalog import Lake
from nexo.lake.maintenance.debt import MergePace
from nexo.lake.maintenance.maintain import RewriteDone, commit_rewrites
from nexo.lake.maintenance.planning import Care, RewritePlan, attempted, rewrites
from nexo.lake.progress import TableDebt
from pyspark_nexo.tiering import TaskGroup, run_tasks, slots

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyspark.sql import SparkSession

_SHARE = 4
"""The part of the slots that merges."""


@dataclass(slots=True)
class Merging:
    """Merges the tables of a lake, round by round."""

    spark: SparkSession
    lake: Lake
    note: Callable[[str], None]
    owes: Callable[[TableDebt], None] = lambda _: None
    care: Care = field(default_factory=Care)
    pace: MergePace = field(default_factory=MergePace)

    def round(self, ended: Callable[[], bool] = lambda: False) -> int:
        """Merge what is due, the tables with the most files first; returns how many files."""
        merged = 0
        for plan in sorted(self._plans(), key=lambda each: -each.files):
            if ended():
                break
            done = self._attempted(plan)
            merged += done.files
            left = plan.files - done.files, plan.size_bytes - done.size_bytes
            self.owes(self.pace.debt(_name(plan.table), *left))
        return merged

    def _plans(self) -> Iterator[RewritePlan]:
        try:
            for table in self.lake.kept():
                try:
                    plan = rewrites(table, self.care)
                except Exception as error:  # what is wrong with one table stops no other
                    self._failed(table, error)
                else:
                    yield plan
        except NexoError as error:  # of tables that cannot be read, after the others
            self.note(f"maintenance will try again: {error.message}")

    def _attempted(self, plan: RewritePlan) -> RewritePlan:
        try:
            return self._merged(plan)
        except Exception as error:  # as above
            self._failed(plan.table, error)
            return RewritePlan(plan.table, plan.read_at, ())

    def _failed(self, table: Table, error: Exception) -> None:
        message = error.message if isinstance(error, NexoError) else repr(error)
        self.note(f"{_name(table)} cannot be merged: {message}")

    def _merged(self, plan: RewritePlan) -> RewritePlan:
        """Do a plan's rewrites and commit them; returns the part that is done."""
        started_s, done = time.monotonic(), list[RewriteDone]()
        at_once = max(slots(self.spark) // _SHARE, 1)
        for first in range(0, len(plan.due), at_once):
            some = plan.due[first : first + at_once]
            work = TaskGroup(attempted, some)
            found = run_tasks(self.spark, work, f"Nexo: merging {_name(plan.table)}")
            for each, made in zip(some, found, strict=True):
                if isinstance(made, NexoError):
                    self._failed(plan.table, made)
                else:
                    done.append((each, made))
        merged = commit_rewrites(plan, done)
        self.pace.took(merged.size_bytes, time.monotonic() - started_s)
        if merged.files:
            into = sum(len(made) for _, made in done)
            self.note(f"{_name(plan.table)}: merged {merged.files} files into {into}")
        return merged


def _name(table: Table) -> str:
    return ".".join(table.name())
