"""Exactly-once: files and the offsets they end at become part of a table in one commit (SPEC I4).

The table's own properties are the only record of how far a stream has been taken. A commit says
what they were when its ranges were planned; if they have moved meanwhile, another pipeline was
first, and nothing is committed.

Every commit carries an id in its snapshot's summary. A catalog that fails may have committed all
the same, so after any answer but a clear conflict the table is read again and searched for the id.
Every attempt names the snapshot that it builds on, so at most one of several attempts succeeds.
While an outcome is unknown, no file is deleted: the sweep removes what no snapshot names.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nexo.errors import Conflict, NexoError, Unavailable
from nexo.lake.catalog import OFFSETS, as_ours, first_line
from nexo.lake.files import DataFileFacts
from nexo.lake.offsets import offsets_of, offsets_text
from nexo.lake.paths import delete_files, local_path, sync_local
from nexo.lake.snapshot import Draft, TableChange, draft, landed

if TYPE_CHECKING:
    from pyiceberg.table import Table

# ruff: noqa: PLC0415 - PyIceberg takes half a second to import

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
class TakenRange:
    """One partition's records up to before ``end``, and the files they are in.

    ``after`` is the table's offset when the range was planned, None if it had none.
    """

    partition: int
    after: int | None
    end: int
    files: Sequence[DataFileFacts]


def commit(
    table: Table, taken: Sequence[TakenRange], replaced: Sequence[str] = (), *, fresh: bool = False
) -> Table:
    """Add files and move the offsets, together, as one durable snapshot; returns the table so.

    ``replaced`` are paths of files that the new ones stand for. A table that is ``fresh`` is read
    again only after a conflict. Raises `LostRace` if the table is no longer where the ranges were
    planned; the new files are deleted then.
    """
    commit_id = uuid.uuid4().hex

    def prepare(fresh: Table) -> Draft:
        _check(fresh, taken)
        _check_files(fresh, taken)
        offsets = offsets_of(fresh.properties) | {part.partition: part.end for part in taken}
        moved = {OFFSETS: offsets_text(offsets)}
        added = [facts for part in taken for facts in part.files]
        change = TableChange(commit_id, added, frozenset(replaced), moved, moved)
        return draft(fresh, change)

    new_files = [facts.path for part in taken for facts in part.files]
    return apply(table, prepare, commit_id, new_files, fresh=fresh)


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
    with as_ours(f"cannot commit to table {'.'.join(table.name())}"):
        while True:
            if not fresh:
                attempt.refresh()
                if commit_id and landed(table, commit_id):
                    return _synced(table)
            fresh = False
            drafted = attempt.prepared(prepare)
            if drafted is None or attempt.commit(drafted):
                return table


class _Attempts:
    """Attempts at one change: what is known of their outcome, and when to give up."""

    def __init__(self, table: Table, commit_id: str, new_files: Sequence[str]) -> None:
        self._table = table
        self._commit_id = commit_id
        self._new_files = new_files
        self._conflicts = self._failures = 0

    def refresh(self) -> None:
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
        try:
            return prepare(self._table)
        except Conflict:
            self._discard()
            raise

    def commit(self, drafted: Draft) -> bool:
        from pyiceberg.exceptions import CommitFailedException

        try:
            _update(self._table, drafted)
        except CommitFailedException as error:
            delete_files(self._table.io, drafted.written)
            self._conflicts += 1
            self._pause(error, self._conflicts, ATTEMPTS)
            return False
        except Exception as error:  # catalogs raise whatever their drivers raise
            if _is_refusal(error):
                raise
            self._failures += 1
            self._pause(error, self._failures, _UNKNOWN_ATTEMPTS)
            return False
        return True

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
        raise LostRace(f"table {name} was removed or renamed meanwhile") from None
    if fresh.metadata.table_uuid != table.metadata.table_uuid:
        raise LostRace(f"table {name} was replaced by another one meanwhile")
    table.metadata, table.metadata_location = fresh.metadata, fresh.metadata_location
    table.io, table.config = fresh.io, fresh.config
    return table


def _update(table: Table, drafted: Draft) -> None:
    """Have the catalog apply an update; sync and drop metadata files as the update says."""
    from nexo.lake.folder.catalog import FolderCatalog

    known = {entry.metadata_file for entry in table.metadata.metadata_log}
    catalog, change = table.catalog, (table, drafted.requirements, drafted.updates)
    if isinstance(catalog, FolderCatalog):
        reply = catalog.commit_table(*change, written=drafted.written)
    else:
        sync_local(drafted.written)
        reply = catalog.commit_table(*change)
        sync_local([reply.metadata_location])
    table.metadata, table.metadata_location = reply.metadata, reply.metadata_location
    dropped = known - {entry.metadata_file for entry in reply.metadata.metadata_log}
    with suppress(OSError):  # the sweep removes what is left
        delete_files(table.io, dropped)


def _is_refusal(error: Exception) -> bool:
    """Whether a catalog says clearly that it will not commit, and never would."""
    from pyiceberg import exceptions as known

    refusals = known.UnauthorizedError, known.ForbiddenError, known.BadRequestError
    return isinstance(error, (*refusals, known.NoSuchTableError))


def _check(table: Table, taken: Sequence[TakenRange]) -> None:
    offsets = offsets_of(table.properties)
    for part in taken:
        found = offsets.get(part.partition)
        if found != part.after:
            raise LostRace(
                f"table {'.'.join(table.name())} is at offset {found} of partition "
                f"{part.partition}, not at {part.after}: another pipeline was first"
            )


def _check_files(table: Table, taken: Sequence[TakenRange]) -> None:
    """Never name a file that was deleted meanwhile, say by a sweep without grace."""
    for part in taken:
        for facts in part.files:
            path = local_path(facts.path)
            if path is not None and not os.path.exists(path):  # noqa: PTH110
                raise Unavailable(
                    f"{facts.path} is not there to be committed to {'.'.join(table.name())}: "
                    "either it was deleted (keep a grace when maintaining beside a pipeline), or "
                    "executors write to a disk that this machine does not share (use one, or an "
                    "object store)"
                )


def _synced(table: Table) -> Table:
    """Sync the metadata of a commit that was reported as failed: the broker will forget records."""
    sync_local([table.metadata_location])
    return table
