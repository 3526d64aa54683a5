"""Attempts at a commit until it is known whether it has happened (SPEC I4).

Every commit carries an id in its snapshot's summary. A catalog may report a failure and yet have
committed, so unless it clearly rejects a commit, the table is read again and searched for the id.
Every attempt names the snapshot that it builds on, so at most one of several attempts succeeds.
While an outcome is unknown, no file is deleted: the sweep removes what no snapshot names.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

from nexo.errors import Conflict, NexoError, Unavailable
from nexo.lake.failures import first_line, lake_errors
from nexo.lake.paths import delete_files, sync_local
from nexo.lake.snapshot import Draft, landed

if TYPE_CHECKING:
    from pyiceberg.table import CommitTableResponse, Table

    from nexo.lake.folder.catalog import FolderCatalog

# ruff: noqa: PLC0415 - PyIceberg takes half a second to import

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


class CommitWork(Protocol):
    """A commit to one table (`nexo.lake.once.TableCommit`)."""

    @property
    def table(self) -> Table: ...
    @property
    def commit_id(self) -> str: ...
    @property
    def new_files(self) -> list[str]: ...
    def prepare(self, fresh: Table) -> Draft | None:
        """The update of the table as it is; None if nothing is left to do."""


def commit_all(work: Sequence[CommitWork]) -> list[Table | Exception]:
    """Commit to several tables that were just read: what `apply` returns or raises, of each.

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


def _commit_alone(work: CommitWork) -> Table | Exception:
    try:
        return apply(work.table, work.prepare, work.commit_id, work.new_files, fresh=True)
    except Exception as error:  # of this table alone
        return error


def _commit_together(catalog: FolderCatalog, work: Sequence[CommitWork]) -> list[Table | Exception]:
    """One transaction; a table for which it fails is committed alone, after it was read again."""
    outcomes: dict[int, Table | Exception] = {}
    drafts: dict[int, Draft] = {}
    attempts = [_Attempts(each.table, each.commit_id, each.new_files) for each in work]
    for number, attempt in enumerate(attempts):
        try:
            with lake_errors(attempt.label):
                drafted = attempt.prepared(work[number].prepare)
                if drafted is None:
                    outcomes[number] = work[number].table
                else:
                    drafts[number] = drafted
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

    ``prepare`` returns None if nothing is left to do. ``new_files`` are deleted then, and after a
    conflict, if it is certain that no attempt has made them part of the table.
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

    def prepared(self, prepare: Callable[[Table], Draft | None]) -> Draft | None:
        """The change to commit; deletes the new files if there is none, or a conflict."""
        try:
            found = prepare(self._table)
        except Conflict:
            self._discard()
            raise
        if found is None:
            self._discard()
        return found

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
