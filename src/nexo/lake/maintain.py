"""Keeping a table small: files merged, manifests merged, old snapshots and their files gone.

Safe beside running appends. Merging replaces files under snapshot isolation and is tried again
when the table moved. A file is deleted only after no snapshot has named it for a grace period, so
that neither a write under way nor a reader of an expired snapshot loses what it needs; snapshots
with a tag or a branch are never expired.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, TypeVar

from nexo.lake.catalog import KIND, NEWEST, OFFSETS, as_ours
from nexo.lake.commit import ATTEMPTS, data_files, may_retry, offsets_of, offsets_text
from nexo.lake.files import DataFileFacts, FileWriter, target
from nexo.lake.paths import delete_files
from nexo.lake.read import Span, row_groups, spans
from nexo.lake.rows import chunked
from nexo.lake.sweep import sweep

if TYPE_CHECKING:
    from pyiceberg.table import Table

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Care:
    """How much care a table gets."""

    small_bytes: int = 32 * 1024**2
    """Files below this are merged…"""
    target_bytes: int = 128 * 1024**2
    """…into files of about this size."""
    min_files: int = 8
    """A day of a partition is merged when it has this many small files in a row."""
    max_manifests: int = 50
    max_snapshots: int = 100
    grace_s: float = 3_600.0
    """How long a file that no snapshot names is kept."""


@dataclass(slots=True)
class Report:
    """What was done to one table."""

    table: str
    merged_files: int = 0
    merged_into: int = 0
    merged_manifests: int = 0
    expired_snapshots: int = 0
    deleted_files: int = 0
    waiting_files: int = 0

    def __str__(self) -> str:
        return (
            f"{self.table}: merged {self.merged_files} files into {self.merged_into} and "
            f"{self.merged_manifests} manifests, expired {self.expired_snapshots} snapshots, "
            f"deleted {self.deleted_files} files, {self.waiting_files} waiting"
        )

    @property
    def did_something(self) -> bool:
        """Whether there is anything to tell."""
        return bool(
            self.merged_files or self.merged_manifests or self.expired_snapshots
            or self.deleted_files
        )  # fmt: skip


def maintain(table: Table, care: Care | None = None) -> Report:
    """Do what is due."""
    care = care or Care()
    report = Report(".".join(table.name()))
    with as_ours(f"cannot maintain table {report.table}"):
        if table.properties.get(KIND) != NEWEST:  # which is written anew with each step
            _merge_files(table, care, report)
        _merge_manifests(table, care, report)
        _expire(table, care, report)
        swept = sweep(table.refresh(), care.grace_s)
        report.deleted_files, report.waiting_files = swept.deleted, swept.waiting
    return report


# -- data files ----------------------------------------------------------------------


def _merge_files(table: Table, care: Care, report: Report) -> None:
    from pyiceberg.exceptions import ValidationException  # noqa: PLC0415 - slow to import

    for run in list(_runs(table.refresh(), care)):
        merged = _rewritten(table, run)
        try:
            _retried(table, partial(_replace, run=run, merged=merged))
        except ValidationException:  # another has merged or erased some of them meanwhile
            delete_files(table.io, [facts.path for facts in merged])
            continue
        report.merged_files += len(run)
        report.merged_into += len(merged)


def _runs(table: Table, care: Care) -> Iterator[list[Span]]:
    """Small files next to each other, of one partition and day, as many as fit one file."""
    for _, found in groupby(
        spans(table), key=lambda span: (span.partition, span.file.partition[0])
    ):
        run: list[Span] = []
        size = 0
        for span in found:
            small = span.file.file_size_in_bytes < care.small_bytes
            if not small or size + span.file.file_size_in_bytes > care.target_bytes:
                if len(run) >= care.min_files:
                    yield run
                run, size = [], 0
            if small:
                run.append(span)
                size += span.file.file_size_in_bytes
        if len(run) >= care.min_files:
            yield run


def _rewritten(table: Table, run: Sequence[Span]) -> list[DataFileFacts]:
    where = target(table)
    label = f"{run[0].partition:04}-{run[0].first:016}-{run[-1].last + 1:016}-merged"
    small = (
        batch
        for span in run
        for rows in row_groups(table.io, span.path, where.schema)
        for batch in rows.to_batches()
    )
    return FileWriter(where, run[0].partition, label).save(chunked(small))


def _replace(table: Table, run: Sequence[Span], merged: Sequence[DataFileFacts]) -> None:
    summary = {OFFSETS: offsets_text(offsets_of(table.properties))}
    with (
        table.transaction() as transaction,
        transaction.update_snapshot(snapshot_properties=summary).overwrite() as update,
    ):
        for span in run:
            update.delete_data_file(span.file)
        for made in data_files(table, merged):
            update.append_data_file(made)


def _retried(table: Table, change: Callable[[Table], T]) -> T:
    """A change to the table as it is now, again if another was first."""
    for attempt in range(ATTEMPTS):
        try:
            return change(table.refresh())
        except Exception as error:  # drivers raise whatever they like
            if attempt == ATTEMPTS - 1 or not may_retry(error):
                raise
            time.sleep(0.05 * (1 + attempt))
    raise AssertionError("the loop returns or raises")


# -- manifests and snapshots -------------------------------------------------------------


def _merge_manifests(table: Table, care: Care, report: Report) -> None:
    snapshot = table.refresh().current_snapshot()
    before = len(snapshot.manifests(table.io)) if snapshot is not None else 0
    if before <= care.max_manifests:
        return

    def change(fresh: Table) -> None:
        summary = {OFFSETS: offsets_text(offsets_of(fresh.properties))}
        # An append of nothing, for the merging that comes with it.
        with (
            fresh.transaction() as transaction,
            transaction.update_snapshot(snapshot_properties=summary).merge_append(),
        ):
            pass

    _retried(table, change)
    merged = table.refresh().current_snapshot()
    after = len(merged.manifests(table.io)) if merged is not None else 0
    report.merged_manifests = max(before - after, 0)


def _expire(table: Table, care: Care, report: Report) -> None:
    def change(fresh: Table) -> int:
        kept = {ref.snapshot_id for ref in fresh.metadata.refs.values()}
        ordered = sorted(fresh.metadata.snapshots, key=lambda each: each.sequence_number or 0)
        old = [
            snapshot.snapshot_id
            for snapshot in ordered[: -care.max_snapshots]
            if snapshot.snapshot_id not in kept
        ]
        if old:
            fresh.maintenance.expire_snapshots().by_ids(old).commit()
        return len(old)

    report.expired_snapshots = _retried(table, change)
