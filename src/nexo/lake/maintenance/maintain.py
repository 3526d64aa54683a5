"""Keeping a table small: files merged, manifests merged, old snapshots and their files gone.

Appends may run at the same time. Merging replaces files in one commit per table, which is tried
again if the table changed. A file is deleted only after no snapshot has named it for a grace
period, so that neither a write under way nor a reader of an expired snapshot loses what it needs;
snapshots with a tag or a branch are never expired.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

from nexo.lake.commit import apply, refresh
from nexo.lake.failures import lake_errors
from nexo.lake.files import DataFileFacts
from nexo.lake.maintenance.ordering import ordered_files
from nexo.lake.maintenance.sweep import sweep
from nexo.lake.once import drafted
from nexo.lake.reading.ranges import FileRange, file_ranges
from nexo.lake.snapshot import FilesGone, TableChange, expiry
from nexo.lake.tables import KIND, NEWEST, USER, read_point

if TYPE_CHECKING:
    from pyiceberg.table import Table


@dataclass(frozen=True, slots=True)
class Care:
    """When a table's files are merged, and how long old ones are kept."""

    small_bytes: int = 32 * 1024**2
    """Smaller files are merged."""
    target_bytes: int = 128 * 1024**2
    """About the size of merged files."""
    min_files: int = 8
    """A day of a partition is merged when it has this many small files in a row."""
    max_manifests: int = 50
    max_snapshots: int | None = None
    """None for what the table says, or 100."""
    grace_s: float = 3_600.0
    """How long a file that no snapshot names is kept."""
    budget_s: float = float("inf")
    """How long one run merges files; the next run continues."""


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
        """Whether anything was merged, expired or deleted."""
        return bool(
            self.merged_files or self.merged_manifests or self.expired_snapshots
            or self.deleted_files
        )  # fmt: skip


def maintain(table: Table, care: Care | None = None) -> Report:
    """Do what is due, within the budget."""
    care = care or Care()
    report = Report(".".join(table.name()))
    with lake_errors(f"cannot maintain table {report.table}"):
        # Newest records are rewritten by each step, and a table of users is read as a stream by the
        # commits that added its files.
        if table.properties.get(KIND) != NEWEST and USER not in table.properties:
            _merge_files(table, care, report)
        _merge_manifests(table, care, report)
        _expire(table, care, report)
        swept = sweep(refresh(table), care.grace_s)
        report.deleted_files, report.waiting_files = swept.deleted, swept.waiting
    return report


# -- data files ----------------------------------------------------------------------


def _merge_files(table: Table, care: Care, report: Report) -> None:
    """Bring other programs' files into order, and merge small ones, as the budget allows."""
    ends_s = time.monotonic() + care.budget_s
    removed: list[str] = []
    made: list[DataFileFacts] = []
    read_at = read_point(refresh(table))
    files = file_ranges(table)
    for rewritten in _rewriting(table, files, care):
        made += rewritten.made
        removed += rewritten.removed
        if time.monotonic() >= ends_s:
            break
    if removed and replace_files(table, removed, made, read_at):
        report.merged_files, report.merged_into = len(removed), len(made)


@dataclass(frozen=True, slots=True)
class _Rewritten:
    """Files that hold the rows of others."""

    removed: Sequence[str]
    made: Sequence[DataFileFacts]


def _rewriting(table: Table, files: Sequence[FileRange], care: Care) -> Iterator[_Rewritten]:
    """Every rewrite that is due, the most pressing first."""
    foreign = [each for each in files if _is_foreign(each)]
    placeless = [each for each in files if each.is_placeless and not _is_foreign(each)]
    if len(placeless) >= care.min_files:
        foreign += [each for each in placeless if each.file.file_size_in_bytes < care.small_bytes]
    for some in _batches(foreign, care.target_bytes):
        yield _Rewritten([each.path for each in some], ordered_files(table, some))
    for run in _runs([each for each in files if not _is_foreign(each)], care):
        yield _Rewritten([each.path for each in run], ordered_files(table, run, "merged"))


def _is_foreign(part: FileRange) -> bool:
    """Whether a file is to be brought into order; rows without a place stay where they are."""
    return bool(part.deletes) or not (part.is_ordered or part.is_placeless)


def _batches(files: Sequence[FileRange], most_bytes: int) -> Iterator[list[FileRange]]:
    """Files that are rewritten together."""
    some, size = list[FileRange](), 0
    for each in files:
        some.append(each)
        size += each.file.file_size_in_bytes
        if size >= most_bytes:
            yield some
            some, size = [], 0
    if some:
        yield some


def replace_files(
    table: Table, old: Iterable[str], new: Sequence[DataFileFacts], read_at: int
) -> bool:
    """Commit files that hold the rows of old ones, which were read at that `read_point`.

    False if another change replaced one, or deleted rows, first.
    """
    change = TableChange(added=new, removed=frozenset(old), read_at=read_at, rewrites=True)
    try:
        _apply_change(table, change)
    except FilesGone:
        return False
    return True


def _apply_change(table: Table, change: TableChange) -> None:
    """Commit a change that moves no offsets."""
    added = [facts.path for facts in change.added]
    apply(table, lambda fresh: drafted(fresh, change), change.commit_id, added)


def _runs(files: Sequence[FileRange], care: Care) -> Iterator[list[FileRange]]:
    """Small files next to each other, of one partition and part of the table, that fit one file."""

    def part_of_table(part: FileRange) -> tuple[int, str]:
        return part.partition, str(part.file.partition)

    ordered = [each for each in files if each.is_ordered]
    for _, found in groupby(sorted(ordered, key=part_of_table), key=part_of_table):
        run: list[FileRange] = []
        size = 0
        for part in found:
            small = part.file.file_size_in_bytes < care.small_bytes
            if not small or size + part.file.file_size_in_bytes > care.target_bytes:
                if len(run) >= care.min_files:
                    yield run
                run, size = [], 0
            if small:
                run.append(part)
                size += part.file.file_size_in_bytes
        if len(run) >= care.min_files:
            yield run


# -- manifests and snapshots -------------------------------------------------------------


def _merge_manifests(table: Table, care: Care, report: Report) -> None:
    before = _manifests(refresh(table))
    if before <= care.max_manifests:
        return
    _apply_change(table, TableChange(merge_at=2))
    report.merged_manifests = max(before - _manifests(table), 0)


def _manifests(table: Table) -> int:
    snapshot = table.current_snapshot()
    return 0 if snapshot is None else len(snapshot.manifests(table.io))


def _expire(table: Table, care: Care, report: Report) -> None:
    before = {snapshot.snapshot_id for snapshot in table.metadata.snapshots}
    apply(table, lambda fresh: expiry(fresh, care.max_snapshots))
    left = {snapshot.snapshot_id for snapshot in table.metadata.snapshots}
    report.expired_snapshots = len(before - left)
