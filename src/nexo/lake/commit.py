"""Exactly-once: files and the offsets they end at become part of a table in one commit (SPEC I4).

The table's own properties are the only record of how far a stream has been taken. A commit says
what they were when its ranges were planned; if they have moved meanwhile, another pipeline was
first, and nothing is committed. PyIceberg's own retry is off (`nexo.lake.catalog`), because it
would commit a second time what another already did.
"""

from __future__ import annotations

import json
import os
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nexo.errors import Conflict, Unavailable
from nexo.lake.catalog import OFFSETS, as_ours, first_line
from nexo.lake.files import DataFileFacts
from nexo.lake.paths import delete_files, local_path, sync_local

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Table

# ruff: noqa: PLC0415 - PyIceberg takes half a second to import

ATTEMPTS = 20
COMMIT_ID = "nexo.commit-id"
_PAUSE_S = 0.05


class LostRace(Conflict):
    """Another pipeline committed these offsets first; the files of this one were removed."""

    code = "LOST_RACE"


@dataclass(frozen=True, slots=True)
class Taken:
    """One partition's records up to before ``end``, and the files they are in.

    ``after`` is the table's offset when the range was planned, None if it had none.
    """

    partition: int
    after: int | None
    end: int
    files: Sequence[DataFileFacts]


def offsets_of(properties: Mapping[str, str]) -> dict[int, int]:
    """Per partition: the table holds everything below."""
    found: dict[str, int] = json.loads(properties.get(OFFSETS, "{}"))
    return {int(partition): offset for partition, offset in found.items()}


def offsets_text(offsets: Mapping[int, int]) -> str:
    """The property's text; sorted, so that equal offsets are equal texts."""
    return json.dumps({str(key): offsets[key] for key in sorted(offsets)})


def commit(table: Table, taken: Sequence[Taken], replaced: Sequence[str] = ()) -> Table:
    """Add files and move the offsets, together, as one durable snapshot; returns the table so.

    ``replaced`` are paths of files that the new ones stand for. Raises `LostRace` if the table
    is no longer where the ranges were planned.
    """
    commit_id = uuid.uuid4().hex
    with as_ours(f"cannot commit to table {'.'.join(table.name())}"):
        for attempt in range(ATTEMPTS):
            table = table.refresh()
            if _landed(table, commit_id):
                return _durable(table)
            _check(table, taken)
            _check_files(table, taken)
            try:
                return _durable(_append(table, taken, commit_id, replaced))
            except Exception as error:  # drivers raise whatever they like
                if not may_retry(error):
                    raise
                time.sleep(_PAUSE_S * (1 + attempt))
                refused = first_line(error)
    raise Unavailable(
        f"table {'.'.join(table.name())} changed {ATTEMPTS} times while committing: {refused}"
    )


def _landed(table: Table, commit_id: str) -> bool:
    """Whether an attempt succeeded although it was reported as failed."""
    return any(
        snapshot.summary is not None and snapshot.summary.get(COMMIT_ID) == commit_id
        for snapshot in table.metadata.snapshots[-ATTEMPTS:]
    )


def _check(table: Table, taken: Sequence[Taken]) -> None:
    offsets = offsets_of(table.properties)
    for part in taken:
        found = offsets.get(part.partition)
        if found != part.after:
            delete_files(table.io, (facts.path for each in taken for facts in each.files))
            raise LostRace(
                f"table {'.'.join(table.name())} is at offset {found} of partition "
                f"{part.partition}, not at {part.after}: another pipeline was first"
            )


def _check_files(table: Table, taken: Sequence[Taken]) -> None:
    """Never name a file that was deleted meanwhile, say by a sweep without grace."""
    for part in taken:
        for facts in part.files:
            path = local_path(facts.path)
            if path is not None and not os.path.exists(path):  # noqa: PTH110
                raise Unavailable(
                    f"{facts.path} is gone before its commit to {'.'.join(table.name())}: "
                    "files in use were deleted; keep a grace when maintaining beside a pipeline"
                )


def _append(table: Table, taken: Sequence[Taken], commit_id: str, replaced: Sequence[str]) -> Table:
    offsets = offsets_of(table.properties) | {part.partition: part.end for part in taken}
    text = offsets_text(offsets)
    with table.transaction() as transaction:
        transaction.set_properties({OFFSETS: text})
        snapshot = transaction.update_snapshot(
            snapshot_properties={COMMIT_ID: commit_id, OFFSETS: text}
        )
        with snapshot.overwrite() if replaced else snapshot.fast_append() as update:
            for old in _files_at(table, replaced):
                update.delete_data_file(old)
            for data_file in data_files(table, (f for part in taken for f in part.files)):
                update.append_data_file(data_file)
    return table


def _files_at(table: Table, paths: Sequence[str]) -> list[DataFile]:
    wanted = set(paths)
    if not wanted:
        return []
    return [task.file for task in table.scan().plan_files() if task.file.file_path in wanted]


def may_retry(error: Exception) -> bool:
    """Whether a commit failed only because another was first."""
    from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException

    busy = type(error).__name__ == "OperationalError"  # SQLite: another process commits
    return busy or isinstance(error, CommitFailedException | CommitStateUnknownException)


def _durable(table: Table) -> Table:
    """Sync what a commit wrote beside the data files, so that the broker may forget them."""
    snapshot = table.current_snapshot()
    written = [table.metadata_location]
    if snapshot is not None:
        written.append(snapshot.manifest_list)
        written += [
            manifest.manifest_path
            for manifest in snapshot.manifests(table.io)
            if manifest.added_snapshot_id == snapshot.snapshot_id
        ]
    sync_local(written)
    return table


def data_files(table: Table, facts: Iterable[DataFileFacts]) -> list[DataFile]:
    """Manifest entries of a table's current partition spec."""
    from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
    from pyiceberg.typedef import Record

    def one(fact: DataFileFacts) -> DataFile:
        made = DataFile.from_args(
            content=DataFileContent.DATA,
            file_path=fact.path,
            file_format=FileFormat.PARQUET,
            partition=Record() if fact.day is None else Record(fact.day),
            file_size_in_bytes=fact.size_bytes,
            record_count=fact.count,
            column_sizes=fact.column_sizes,
            value_counts=fact.value_counts,
            null_value_counts=fact.null_counts,
            lower_bounds=fact.lower,
            upper_bounds=fact.upper,
            split_offsets=fact.split_offsets,
            sort_order_id=None,
            equality_ids=None,
            key_metadata=None,
        )
        made.spec_id = table.metadata.default_spec_id
        return made

    return [one(fact) for fact in facts]
