"""Keeping a table small: files merged, manifests merged, old snapshots and their files gone.

Appends may run at the same time. Merging replaces files in one commit per table, which is tried
again if the table changed. A file is deleted only after no snapshot has named it for a grace
period, so that neither a write under way nor a reader of an expired snapshot loses what it needs;
snapshots with a tag or a branch are never expired.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

from nexo.lake.commit import apply, refresh
from nexo.lake.failures import lake_errors
from nexo.lake.files import DataFileFacts
from nexo.lake.maintenance.planning import Care, Rewrite, RewritePlan, rewrites
from nexo.lake.maintenance.sweep import sweep
from nexo.lake.once import drafted
from nexo.lake.reading.growing import MERGED, rows_version
from nexo.lake.snapshot import Draft, FilesGone, TableChange, expiry
from nexo.lake.tables import USER

if TYPE_CHECKING:
    from pyiceberg.table import Table

__all__ = ["Care", "Report", "RewriteDone", "commit_rewrites", "maintain", "replace_files"]


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
    merged_bytes: int = 0
    due_files: int = 0
    """That were to be merged at the start, as are ``due_bytes``."""
    due_bytes: int = 0

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
        if care.merges:
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
    plan, done = rewrites(table, care), list[RewriteDone]()
    report.due_files, report.due_bytes = plan.files, plan.size_bytes
    for work in plan.due:
        done.append((work, rewritten(work)))
        if time.monotonic() >= ends_s:
            break
    merged = commit_rewrites(plan, done)
    report.merged_files, report.merged_bytes = merged.files, merged.size_bytes
    report.merged_into = sum(len(made) for _, made in done) if merged.files else 0


def rewritten(work: Rewrite) -> list[DataFileFacts]:
    """Do a rewrite here; returns the new files."""
    return work.run()


RewriteDone: TypeAlias = "tuple[Rewrite, Sequence[DataFileFacts]]"
"""A rewrite, and the files that hold its rows."""


def commit_rewrites(plan: RewritePlan, done: Sequence[RewriteDone]) -> RewritePlan:
    """Commit what was rewritten, all in one; returns the part of the plan that is done.

    Nothing of it is if another change replaced a file, or deleted rows, first.
    """
    removed = [path for work, _ in done for path in work.paths]
    made = [facts for _, some in done for facts in some]
    is_read = USER in plan.table.properties
    if not removed or not replace_files(plan.table, removed, made, plan.read_at, grown=is_read):
        return replace(plan, due=())
    return replace(plan, due=tuple(work for work, _ in done))


def replace_files(
    table: Table,
    old: Iterable[str],
    new: Sequence[DataFileFacts],
    read_at: int,
    *,
    grown: bool = False,
) -> bool:
    """Commit files that hold the rows of old ones, which were read at that `read_point`.

    ``grown`` if the new ones say which commit added each row. False if another change replaced a
    file, or deleted rows, first.
    """
    change = TableChange(added=new, removed=frozenset(old), read_at=read_at, rewrites=True)
    try:
        _apply_change(table, change, grown=grown)
    except FilesGone:
        return False
    return True


def _apply_change(table: Table, change: TableChange, *, grown: bool = False) -> None:
    """Commit a change that moves no offsets."""
    added = [facts.path for facts in change.added]

    def prepare(fresh: Table) -> Draft:
        summary = {MERGED: rows_version(fresh)} if grown else {}
        return drafted(fresh, replace(change, summary=summary))

    apply(table, prepare, change.commit_id, added)


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
