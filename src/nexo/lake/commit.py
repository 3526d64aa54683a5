"""Exactly-once: files and the offsets they end at become part of a table in one commit (SPEC I4).

The table's own properties are the only record of which offsets it holds. A commit names
the offsets that its ranges were planned from; if they have moved since, another pipeline was first,
and nothing is committed.

Every commit carries an id in its snapshot's summary. A catalog may report a failure and yet have
committed, so unless it clearly rejects a commit, the table is read again and searched for the id.
Every attempt names the snapshot that it builds on, so at most one of several attempts succeeds.
While an outcome is unknown, no file is deleted: the sweep removes what no snapshot names.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from nexo.errors import Conflict, NexoError, Unavailable
from nexo.lake.failures import first_line, lake_errors
from nexo.lake.files import DataFileFacts
from nexo.lake.paths import delete_files, local_path, sync_local
from nexo.lake.snapshot import Draft, TableChange, draft, landed
from nexo.lake.tables import OFFSETS, offsets_of, offsets_text, read_point

if TYPE_CHECKING:
    from pyiceberg.table import CommitTableResponse, Table

    from nexo.lake.folder.catalog import FolderCatalog

# ruff: noqa: PLC0415 - PyIceberg takes half a second to import

D = TypeVar("D")

COMMITTERS = 32
"""How many tables are committed in parallel, unless the catalog is a folder."""
ATTEMPTS = 20
_UNKNOWN_ATTEMPTS = 5
_PAUSE_S = 0.05


class LostRace(Conflict):
    """Another pipeline committed these offsets first, or the table was replaced."""

    code = "LOST_RACE"


class CommitUnknown(Unavailable):
    """The catalog failed and cannot be asked whether it committed; nothing was deleted."""

    code = "OUTCOME_UNKNOWN"


@dataclass(frozen=True, slots=True)
class WrittenRange:
    """One partition's records below ``end``, and the files they are in.

    ``after`` is the table's offset when the range was planned, None if it had none.
    """

    partition: int
    after: int | None
    end: int
    files: Sequence[DataFileFacts]


@dataclass(frozen=True, slots=True)
class TableCommit:
    """A commit to one table: files are added and the offsets moved, together, as one snapshot.

    ``replaced`` are paths of files that the new ones replace, as read at ``read_at``.
    """

    table: Table
    ranges: Sequence[WrittenRange]
    replaced: Sequence[str] = ()
    read_at: int = 0
    commit_id: str = field(default_factory=lambda: uuid.uuid4().hex)

    @property
    def new_files(self) -> list[str]:
        return [facts.path for part in self.ranges for facts in part.files]

    def prepare(self, fresh: Table) -> Draft:
        """The update of the table as it is; `LostRace` if it is not where it was planned."""
        _check(fresh, self.ranges)
        _check_files(fresh, self.ranges)
        offsets = offsets_of(fresh.properties) | {part.partition: part.end for part in self.ranges}
        moved = {OFFSETS: offsets_text(offsets)}
        added = [facts for part in self.ranges for facts in part.files]
        removed = frozenset(self.replaced)
        change = TableChange(
            self.commit_id, added, removed, self.read_at, properties=moved, summary=moved
        )
        return draft(fresh, change)


def commit(
    table: Table,
    ranges: Sequence[WrittenRange],
    replaced: Sequence[str] = (),
    *,
    fresh: bool = False,
) -> Table:
    """Build a `TableCommit` and commit it durably; returns the table with it.

    ``table`` is as it was when the replaced files were read.
    A table that is ``fresh`` is read again only after a conflict. Raises `LostRace` if the table
    is no longer where the ranges were planned; the new files are deleted then.
    """
    work = TableCommit(table, ranges, replaced, read_point(table))
    return apply(table, work.prepare, work.commit_id, work.new_files, fresh=fresh)


def commit_all(work: Sequence[TableCommit]) -> list[Table | Exception]:
    """Commit to several tables that were just read: what `commit` returns or raises, of each.

    Tables of a folder share one sync and one transaction; of another catalog, several are committed
    at a time.
    """
    from nexo.lake.folder.catalog import FolderCatalog

    catalogs = {id(each.table.catalog): each.table.catalog for each in work}
    (*others, first) = catalogs.values() if catalogs else (None,)
    if not others and isinstance(first, FolderCatalog):
        return _commit_together(first, work)
    with ThreadPoolExecutor(COMMITTERS, "nexo-commit") as pool:
        return list(pool.map(_commit_alone, work))


def _commit_alone(work: TableCommit) -> Table | Exception:
    try:
        return apply(work.table, work.prepare, work.commit_id, work.new_files, fresh=True)
    except Exception as error:  # of this table alone
        return error


def _commit_together(
    catalog: FolderCatalog, work: Sequence[TableCommit]
) -> list[Table | Exception]:
    """One transaction; a table for which it fails is committed alone, after it was read again."""
    outcomes: dict[int, Table | Exception] = {}
    drafts: dict[int, Draft] = {}
    attempts = [_Attempts(each.table, each.commit_id, each.new_files) for each in work]
    for number, attempt in enumerate(attempts):
        try:
            with lake_errors(attempt.label):
                drafts[number] = attempt.prepared(work[number].prepare)
        except Exception as error:  # of this table alone
            outcomes[number] = error
    replies = _replies(catalog, [(work[number].table, drafts[number]) for number in drafts])
    for number, reply in zip(drafts, replies, strict=True):
        try:
            if isinstance(reply, Exception):
                with lake_errors(attempts[number].label):
                    attempts[number].failed(reply, drafts[number])
                    outcomes[number] = attempts[number].run(work[number].prepare, fresh=False)
            else:
                _committed(work[number].table, reply)
                outcomes[number] = work[number].table
        except Exception as error:  # of this table alone
            outcomes[number] = error
    return [outcomes[number] for number in range(len(work))]


def _replies(
    catalog: FolderCatalog, drafts: Sequence[tuple[Table, Draft]]
) -> Sequence[CommitTableResponse | Exception]:
    try:
        return catalog.commit_tables(drafts)
    except Exception as error:  # whether it has committed is not known
        return [error] * len(drafts)


def apply(
    table: Table,
    prepare: Callable[[Table], Draft | None],
    commit_id: str = "",
    new_files: Sequence[str] = (),
    *,
    fresh: bool = False,
) -> Table:
    """Change a table once: prepare the change for the table as it is now, again after a conflict.

    ``prepare`` returns None if nothing is left to do. ``new_files`` are deleted if it is certain
    that the change did not happen because of a conflict.
    """
    attempt = _Attempts(table, commit_id, new_files)
    with lake_errors(attempt.label):
        return attempt.run(prepare, fresh=fresh)


class _Attempts:
    """Attempts at one change: what is known of their outcome, and when to give up."""

    def __init__(self, table: Table, commit_id: str, new_files: Sequence[str]) -> None:
        self._table = table
        self._commit_id = commit_id
        self._new_files = new_files
        self._conflicts = self._failures = 0

    @property
    def label(self) -> str:
        """How the error begins when there are no more attempts."""
        return f"cannot commit to table {'.'.join(self._table.name())}"

    def run(self, prepare: Callable[[Table], Draft | None], *, fresh: bool) -> Table:
        """Attempt until one succeeds; ``fresh`` if the table was just read."""
        while True:
            if not fresh:
                self._refresh()
                if self._commit_id and landed(self._table, self._commit_id):
                    sync_local(
                        [self._table.metadata_location]
                    )  # the broker may drop the records next
                    return self._table
            fresh = False
            drafted = self.prepared(prepare)
            if drafted is None or self._commit(drafted):
                return self._table

    def _refresh(self) -> None:
        try:
            refresh(self._table)
        except LostRace:
            self._discard()
            raise
        except Exception as error:
            if self._failures:
                raise self._unknown(error) from error
            raise

    def prepared(self, prepare: Callable[[Table], D]) -> D:
        """The change to commit; deletes the new files if a conflict rules it out."""
        try:
            return prepare(self._table)
        except Conflict:
            self._discard()
            raise

    def _commit(self, drafted: Draft) -> bool:
        try:
            _update(self._table, drafted)
        except Exception as error:  # catalogs raise whatever their drivers raise
            self.failed(error, drafted)
            return False
        return True

    def failed(self, error: Exception, drafted: Draft) -> None:
        """Count a failed attempt; raises if it was the last one."""
        from pyiceberg.exceptions import CommitFailedException

        if isinstance(error, CommitFailedException):
            delete_files(self._table.io, drafted.written)
            self._conflicts += 1
            self._pause(error, self._conflicts, ATTEMPTS)
            return
        if _is_refusal(error):
            raise error
        self._failures += 1
        self._pause(error, self._failures, _UNKNOWN_ATTEMPTS)

    def _pause(self, error: Exception, count: int, most: int) -> None:
        if count >= most:
            raise self._unknown(error) from error
        time.sleep(_PAUSE_S * count)

    def _unknown(self, error: Exception) -> NexoError:
        name = ".".join(self._table.name())
        if self._failures:
            return CommitUnknown(
                f"the catalog failed while committing to table {name}: {first_line(error)}"
            )
        return Unavailable(f"table {name} changed {ATTEMPTS} times while committing")

    def _discard(self) -> None:
        """Delete the new files, unless an attempt that failed may have committed them."""
        if not self._failures:
            delete_files(self._table.io, self._new_files)


def refresh(table: Table) -> Table:
    """Bring a table up to date; `LostRace` if another table has its name now."""
    from pyiceberg.exceptions import NoSuchTableError

    name = ".".join(table.name())
    try:
        fresh = table.catalog.load_table(table.name())
    except NoSuchTableError:
        raise LostRace(f"table {name} was removed or renamed since it was read") from None
    if fresh.metadata.table_uuid != table.metadata.table_uuid:
        raise LostRace(f"table {name} was replaced by another one since it was read")
    table.metadata, table.metadata_location = fresh.metadata, fresh.metadata_location
    table.io, table.config = fresh.io, fresh.config
    return table


def _update(table: Table, drafted: Draft) -> None:
    """Have the catalog apply an update, durably."""
    from nexo.lake.folder.catalog import FolderCatalog

    catalog, change = table.catalog, (table, drafted.requirements, drafted.updates)
    if isinstance(catalog, FolderCatalog):
        reply = catalog.commit_table(*change, written=drafted.written)
    else:
        sync_local(drafted.written)
        reply = catalog.commit_table(*change)
        sync_local([reply.metadata_location])
    _committed(table, reply)


def _committed(table: Table, reply: CommitTableResponse) -> None:
    """Show in ``table`` what was committed, and delete metadata that it no longer names."""
    known = {entry.metadata_file for entry in table.metadata.metadata_log}
    table.metadata, table.metadata_location = reply.metadata, reply.metadata_location
    dropped = known - {entry.metadata_file for entry in reply.metadata.metadata_log}
    with suppress(OSError):  # the sweep removes what is left
        delete_files(table.io, dropped)


def _is_refusal(error: Exception) -> bool:
    """Whether a catalog has clearly rejected the commit, so that trying again is no use."""
    from pyiceberg import exceptions as known

    refusals = known.UnauthorizedError, known.ForbiddenError, known.BadRequestError
    return isinstance(error, (*refusals, known.NoSuchTableError))


def _check(table: Table, ranges: Sequence[WrittenRange]) -> None:
    offsets = offsets_of(table.properties)
    for part in ranges:
        found = offsets.get(part.partition)
        if found != part.after:
            raise LostRace(
                f"table {'.'.join(table.name())} is at offset {found} of partition "
                f"{part.partition}, not at {part.after}: another pipeline was first"
            )


def _check_files(table: Table, ranges: Sequence[WrittenRange]) -> None:
    """Commit no file that was deleted since, for example by a sweep without grace."""
    for part in ranges:
        for facts in part.files:
            path = local_path(facts.path)
            if path is not None and not os.path.exists(path):  # noqa: PTH110
                raise Unavailable(
                    f"{facts.path} is missing and cannot be committed to {'.'.join(table.name())}: "
                    "either it was deleted (keep a grace when maintaining beside a pipeline), or "
                    "executors write to a disk that this machine does not share (use one, or an "
                    "object store)"
                )
