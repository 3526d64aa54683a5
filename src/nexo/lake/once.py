"""Each write counts once: a commit leaves a mark in the table, which refuses the same one again.

The mark is in the table's properties, moved in the update that adds the files. (A snapshot's
summary would not do: snapshots expire, after less than two minutes if there is a commit per
second.) What writes again, because it does not know whether it has committed, is therefore refused
by the table itself, whatever order its rows have this time (SPEC I4). There are two kinds of marks:
a stream's offsets, and the number of a writer's last batch.

A commit is also conditional on what it was made from: files that it replaces must be there, no rows
may have been deleted in them since, and files are added under the partition spec that they were
written by.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from nexo.errors import Conflict, InvalidInput, Unavailable
from nexo.lake.commit import LostRace, apply
from nexo.lake.files import DataFileFacts
from nexo.lake.paths import local_path
from nexo.lake.snapshot import Draft, TableChange, draft, time_ms
from nexo.lake.tables import MISSING, OFFSETS, held_offsets, missing_text, offsets_text, read_point

if TYPE_CHECKING:
    from pyiceberg.table import Table

BATCHES = "nexo.queries"
"""A table property: the number of each writer's last batch, and when it was committed."""
REPLACED = "nexo.replaced-at"
"""A table property: the sequence number of the last commit that took rows away."""
IDLE_MS = 30 * 86_400_000
"""After this long without a commit, a writer is forgotten."""


class CommitMark(Protocol):
    """What a commit leaves in a table."""

    def moved(self, table: Table) -> Mapping[str, str] | None:
        """The properties after the commit; None if the table has the mark already.

        Raises `LostRace` if the table is where no commit with this mark may follow.
        """


@dataclass(frozen=True, slots=True)
class WrittenRange:
    """One partition's records below ``end``, and the files they are in.

    ``after`` is the table's offset when the range was planned, None if it had none.
    """

    partition: int
    after: int | None
    end: int
    files: Sequence[DataFileFacts]
    gap: tuple[int, int] | None = None
    """Offsets before the range whose records are in neither tier; the last is excluded."""


@dataclass(frozen=True, slots=True)
class OffsetsMark:
    """The offsets that a stream's ranges were planned from, and where they end.

    If they have moved since, another pipeline was first, and nothing is committed.
    """

    ranges: Sequence[WrittenRange]

    def moved(self, table: Table) -> Mapping[str, str]:
        """The offsets after the ranges."""
        offsets = held_offsets(table)
        for part in self.ranges:
            found = offsets.get(part.partition)
            if found != part.after:
                raise LostRace(
                    f"table {'.'.join(table.name())} is at offset {found} of partition "
                    f"{part.partition}, not at {part.after}: another pipeline was first"
                )
        ends = {part.partition: part.end for part in self.ranges}
        gaps = {part.partition: part.gap for part in self.ranges if part.gap is not None}
        noted = {MISSING: missing_text(table.properties, gaps)} if gaps else {}
        return {OFFSETS: offsets_text(offsets | ends), **noted}


@dataclass(frozen=True, slots=True)
class BatchMark:
    """The number of a writer's batch; a writer's numbers grow."""

    writer: str
    number: int

    def moved(self, table: Table) -> Mapping[str, str] | None:
        """The numbers after this one; None if the writer has committed it, or a later one."""
        known, now_ms = _batches(table.properties), time_ms(table)
        if self.writer in known and known[self.writer][0] >= self.number:
            return None
        kept = {name: each for name, each in known.items() if now_ms - each[1] < IDLE_MS}
        kept[self.writer] = (self.number, now_ms)
        return {BATCHES: json.dumps(kept, sort_keys=True)}


@dataclass(frozen=True, slots=True)
class NoMark:
    """Of a write that counts whenever it is made."""

    def moved(self, table: Table) -> Mapping[str, str]:
        return {}


def last_batches(properties: Mapping[str, str]) -> dict[str, int]:
    """The number of each writer's last batch in a table."""
    return {writer: number for writer, (number, _) in _batches(properties).items()}


def _batches(properties: Mapping[str, str]) -> dict[str, tuple[int, int]]:
    try:
        found = json.loads(properties.get(BATCHES, "{}"))
        return {writer: (int(number), int(at_ms)) for writer, (number, at_ms) in found.items()}
    except (ValueError, TypeError, AttributeError):
        raise Conflict(
            f"the property {BATCHES} of the table is not as Nexo wrote it, so it is not known "
            "which batches the table has: set it back"
        ) from None


@dataclass(frozen=True, slots=True)
class TableCommit:
    """A change of one table that counts once."""

    table: Table
    mark: CommitMark
    change: TableChange
    replaces: Callable[[Table], frozenset[str]] | None = None
    """The files that the added ones replace, of the table as it is; else those of the change."""

    @property
    def commit_id(self) -> str:
        return self.change.commit_id

    @property
    def new_files(self) -> list[str]:
        return [facts.path for facts in self.change.added]

    def prepare(self, fresh: Table) -> Draft | None:
        """The update of the table as it is; None if it has the mark already."""
        moved = self.mark.moved(fresh)
        if moved is None:
            return None
        _check_files(fresh, self.change.added)
        change = self.change
        properties = {**change.properties, **moved}
        if self.replaces is not None:
            removed, number = self.replaces(fresh), fresh.metadata.next_sequence_number()
            properties |= {REPLACED: str(number)} if removed else {}
            change = replace(change, removed=removed, read_at=read_point(fresh))
        return drafted(fresh, replace(change, properties=properties))


def drafted(fresh: Table, change: TableChange) -> Draft:
    """A change of a table as it is; its snapshot says which offsets it holds."""
    noted = change.properties.get(OFFSETS)
    if noted is None and OFFSETS in fresh.properties:
        noted = offsets_text(held_offsets(fresh))
    summary = change.summary if noted is None else {OFFSETS: noted, **change.summary}
    return draft(fresh, replace(change, summary=summary))


def commit_once(
    table: Table,
    writer: str,
    number: int,
    change: TableChange,
    replaces: Callable[[Table], frozenset[str]] | None = None,
) -> tuple[Table, bool]:
    """Change a table, unless it has this batch of this writer; returns it, and whether it changed.

    ``writer`` names what numbers its batches upwards, such as a streaming query. The added files
    are deleted if the table has the batch already, or if a conflict rules it out: `FilesGone` if
    files to be removed are gone, or have lost rows, since ``change.read_at``. With ``replaces``,
    the files to be removed are those that it finds in the table at each attempt.
    """
    if not writer or number < 0:
        raise InvalidInput("a writer has a name, and numbers its batches from 0")
    work = TableCommit(table, BatchMark(writer, number), change, replaces)
    is_new = False

    def prepare(fresh: Table) -> Draft | None:
        nonlocal is_new
        found = work.prepare(fresh)
        is_new = found is not None
        return found

    return apply(table, prepare, work.commit_id, work.new_files), is_new


def commit_anyway(
    table: Table, change: TableChange, replaces: Callable[[Table], frozenset[str]] | None = None
) -> Table:
    """Change a table by a write that nobody repeats; see `commit_once`."""
    work = TableCommit(table, NoMark(), change, replaces)
    return apply(table, work.prepare, work.commit_id, work.new_files)


def taking(
    table: Table, ranges: Sequence[WrittenRange], replaced: Iterable[str] = (), read_at: int = 0
) -> TableCommit:
    """A commit that adds ranges' files and moves the stream's offsets.

    ``replaced`` are paths of files that the new ones replace, as read at ``read_at``.
    """
    added = [facts for part in ranges for facts in part.files]
    change = TableChange(added=added, removed=frozenset(replaced), read_at=read_at)
    return TableCommit(table, OffsetsMark(ranges), change)


def commit(
    table: Table,
    ranges: Sequence[WrittenRange],
    replaced: Sequence[str] = (),
    *,
    fresh: bool = False,
) -> Table:
    """Add ranges' files and move the stream's offsets; returns the table with them.

    ``table`` is as it was when the replaced files were read.
    A table that is ``fresh`` is read again only after a conflict. Raises `LostRace` if the table
    is no longer where the ranges were planned; the new files are deleted then.
    """
    work = taking(table, ranges, replaced, read_point(table))
    return apply(table, work.prepare, work.commit_id, work.new_files, fresh=fresh)


def _check_files(table: Table, added: Iterable[DataFileFacts]) -> None:
    """Commit no file that was deleted since, for example by a sweep without grace."""
    for facts in added:
        path = local_path(facts.path)
        if path is not None and not os.path.exists(path):  # noqa: PTH110
            raise Unavailable(
                f"{facts.path} is missing and cannot be committed to {'.'.join(table.name())}: "
                "either it was deleted (keep a grace when maintaining beside a pipeline), or "
                "executors write to a disk that this machine does not share (use one, or an "
                "object store)"
            )
