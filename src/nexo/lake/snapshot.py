"""A table's next snapshot, built directly: one manifest, one manifest list, one metadata update.

PyIceberg's transactions copy a table's whole metadata several times per commit. Here the files are
written once and the catalog applies one update. To keep later commits cheap, each commit also
merges a few small manifests and expires the oldest snapshots.
"""

from __future__ import annotations

import json
import time
import uuid
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from nexo.errors import Conflict
from nexo.lake.files import DataFileFacts
from nexo.lake.manifests import (
    DATA,
    DELETED,
    EXISTING,
    AvroRecord,
    added,
    partition_values,
    read_entries,
    read_list,
    write_list,
    write_manifest,
)
from nexo.lake.tables import (
    ORPHANS,
    check_version,
    newest_snapshot,
    orphan_offsets,
    orphans_without,
)

if TYPE_CHECKING:
    from pyiceberg.partitioning import PartitionSpec
    from pyiceberg.schema import Schema
    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot

# ruff: noqa: PLC0415 - PyIceberg takes half a second to import

COMMIT_ID = "nexo.commit-id"
"""In a snapshot's summary: which commit made it."""
KEEP_SNAPSHOTS = 100
EXPIRE_STEP = 20
"""Most snapshots that one commit expires."""
_MERGE_AT = 24
"""About how many manifests of few files there may be. Each table's own limit differs a little, so
that tables that are committed together do not merge together."""
_MERGE_LARGER_AT = 8
"""How many manifests of each larger kind there may be."""
_SMALL_BYTES = 256 * 1024
"""Manifests below this are small."""
_KEPT = "history.expire.min-snapshots-to-keep"
_AGE_MS = "history.expire.max-snapshot-age-ms"
_BRANCH = "main"
_TOTALS = {
    "total-data-files": ("added-data-files", "deleted-data-files"),
    "total-records": ("added-records", "deleted-records"),
    "total-files-size": ("added-files-size", "removed-files-size"),
    "total-delete-files": ("", ""),
    "total-position-deletes": ("", ""),
    "total-equality-deletes": ("", ""),
}
"""A snapshot's totals, and what adds to each and takes from it."""


class FilesGone(Conflict):
    """Files that were to be replaced are not what they were: another change was first."""


@dataclass(frozen=True, slots=True)
class TableChange:
    """What a commit does to a table's files and properties."""

    commit_id: str = field(default_factory=lambda: uuid.uuid4().hex)
    added: Sequence[DataFileFacts] = ()
    removed: frozenset[str] = frozenset()
    """Paths of files to remove."""
    read_at: int = 0
    """The `read_point` of the table whose files are removed: rows that another program marked as
    deleted in them since then would come back."""
    of_all_rows: bool = False
    """Whether it was made from all rows at that point, so that rows added since rule it out."""
    properties: Mapping[str, str] = field(default_factory=dict)
    summary: Mapping[str, str] = field(default_factory=dict)
    merge_at: int | None = None
    """Merge small manifests from this many on; None for the table's own limit."""
    rewrites: bool = False
    """Whether the added files hold the same rows as the removed ones."""


@dataclass(frozen=True, slots=True)
class Draft:
    """A metadata update that the catalog has not applied yet, and the files written for it."""

    updates: tuple[Any, ...]
    requirements: tuple[Any, ...]
    written: tuple[str, ...] = ()


def draft(table: Table, change: TableChange) -> Draft:
    """Write a change's manifests.

    Raises `FilesGone` if the table lacks a file to be removed, or has deleted rows since.
    """
    from pyiceberg.table.refs import SnapshotRefType
    from pyiceberg.table.snapshots import Snapshot
    from pyiceberg.table.update import (
        AddSnapshotUpdate,
        AssertRefSnapshotId,
        AssertTableUUID,
        SetPropertiesUpdate,
        SetSnapshotRefUpdate,
    )

    metadata, parent = table.metadata, newest_snapshot(table)
    parent_id = None if parent is None else parent.snapshot_id
    builder = _Builder(table, parent, change)
    snapshot = Snapshot.model_validate(
        {
            "snapshot-id": builder.snapshot_id,
            "parent-snapshot-id": parent_id,
            "manifest-list": builder.manifest_list(),
            "sequence-number": builder.sequence_number,
            "timestamp-ms": time_ms(table),
            "summary": builder.summary(),
            "schema-id": metadata.current_schema_id,
        }
    )
    updates: list[Any] = [AddSnapshotUpdate(snapshot=snapshot)]
    if change.properties:
        updates.insert(0, SetPropertiesUpdate(updates=dict(change.properties)))
    named = {"ref-name": _BRANCH, "type": SnapshotRefType.BRANCH} | _retention(table)
    updates.append(
        SetSnapshotRefUpdate.model_validate(named | {"snapshot-id": snapshot.snapshot_id})
    )
    if old := expired(table, most=EXPIRE_STEP, coming=1):
        updates += _removal(table, old)
    required = (
        AssertTableUUID(uuid=metadata.table_uuid),
        AssertRefSnapshotId.model_validate({"ref": _BRANCH, "snapshot-id": parent_id}),
    )
    return Draft(tuple(updates), required, tuple(builder.written))


def expiry(table: Table, keep: int | None = None) -> Draft | None:
    """An update that expires all but the newest ``keep`` snapshots; None if none is older.

    None keeps what the table says, or the newest `KEEP_SNAPSHOTS`.
    """
    from pyiceberg.table.update import AssertTableUUID

    old = expired(table, keep)
    if not old:
        return None
    required = (AssertTableUUID(uuid=table.metadata.table_uuid),)
    return Draft(tuple(_removal(table, old)), required)


def _removal(table: Table, gone: Sequence[int]) -> list[Any]:
    """Updates that remove snapshots; what they said of others' offsets stays known."""
    from pyiceberg.table.update import RemoveSnapshotsUpdate, SetPropertiesUpdate

    orphans = orphans_without(table, set(gone))
    noted = json.dumps(orphans, sort_keys=True)
    changed = orphans != orphan_offsets(table.properties)
    return [
        *([SetPropertiesUpdate(updates={ORPHANS: noted})] if changed else []),
        RemoveSnapshotsUpdate.model_validate({"snapshot-ids": list(gone)}),
    ]


def expired(
    table: Table, keep: int | None = None, most: int | None = None, coming: int = 0
) -> list[int]:
    """The oldest snapshots beyond ``keep``, or beyond what the table says; ``coming`` are added.

    What a tag or a branch names is kept.
    """
    metadata = table.metadata
    count, young_ms = (keep, metadata.last_updated_ms) if keep is not None else _kept(table)
    named = {ref.snapshot_id for ref in metadata.refs.values()}
    ordered = sorted(metadata.snapshots, key=lambda each: each.sequence_number or 0)
    old = ordered[: max(len(ordered) + coming - count, 0)]
    return [
        each.snapshot_id
        for each in old
        if each.snapshot_id not in named and each.timestamp_ms <= young_ms
    ][:most]


def landed(table: Table, commit_id: str) -> bool:
    """Whether a commit is part of a table, even if the catalog reported a failure."""
    return any(
        snapshot.summary is not None and snapshot.summary.get(COMMIT_ID) == commit_id
        for snapshot in reversed(table.metadata.snapshots)
    )


def _kept(table: Table) -> tuple[int, int]:
    """How many snapshots a table keeps, and the time since when it keeps all of them."""
    main, given, now_ms = table.metadata.refs.get(_BRANCH), table.properties, time_ms(table)
    count = (main and main.min_snapshots_to_keep) or _number(given.get(_KEPT)) or KEEP_SNAPSHOTS
    age_ms = (main and main.max_snapshot_age_ms) or _number(given.get(_AGE_MS)) or 0
    return count, now_ms - age_ms


def time_ms(table: Table) -> int:
    """The time of a new snapshot: a table's never goes back, even if the clock does."""
    return max(time.time_ns() // 1_000_000, table.metadata.last_updated_ms)


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isascii() and text.isdigit() else None


def _retention(table: Table) -> dict[str, int]:
    """What the main branch says of how long its snapshots are kept."""
    main = table.metadata.refs.get(_BRANCH)
    if main is None:
        return {}
    found = {
        "min-snapshots-to-keep": main.min_snapshots_to_keep,
        "max-snapshot-age-ms": main.max_snapshot_age_ms,
        "max-ref-age-ms": main.max_ref_age_ms,
    }
    return {name: value for name, value in found.items() if value is not None}


def _kind(manifest: AvroRecord) -> int:
    """0 for a manifest of less than 8 files, 1 for less than 64, and so on."""
    files = (manifest["added_files_count"] or 0) + (manifest["existing_files_count"] or 0)
    return max(files.bit_length() - 1, 0) // 3


class _Builder:
    """Writes one snapshot's manifests and their list."""

    def __init__(self, table: Table, parent: Snapshot | None, change: TableChange) -> None:
        check_version(".".join(table.name()), table.metadata.format_version)
        self._table = table
        self._parent = parent
        self._change = change
        self._id = uuid.uuid4()
        self._removed: list[AvroRecord] = []
        self._made: list[AvroRecord] = []
        self.snapshot_id = table.metadata.new_snapshot_id()
        self.sequence_number = table.metadata.next_sequence_number()
        self.written: list[str] = []

    def manifest_list(self) -> str:
        """Write everything; returns the list's path."""
        parent = self._parent
        known = [] if parent is None else read_list(self._table.io, parent.manifest_list)
        kept = self._merged(self._without_removed(known))
        path = self._new(f"snap-{self.snapshot_id}-0-{self._id}.avro")
        write_list(
            self._table.io,
            path,
            [*self._made, *kept],
            self.snapshot_id,
            None if parent is None else parent.snapshot_id,
            self.sequence_number,
            "" if parent is None else parent.manifest_list,
        )
        return path

    def _without_removed(self, known: list[AvroRecord]) -> list[AvroRecord]:
        """Manifests that name no removed file; the others are rewritten without those files."""
        removed = self._change.removed
        if self._change.of_all_rows:
            self._check_added(known)
        if not removed:
            return known
        self._check_deletes(known)
        self._check_line()
        untouched, found = [], set[str]()
        for manifest in known:
            entries = read_entries(self._table.io, manifest) if manifest["content"] == DATA else []
            gone = {entry["data_file"]["file_path"] for entry in entries} & removed
            if not gone:
                untouched.append(manifest)
                continue
            found |= gone
            self._write(manifest["partition_spec_id"], self._split(entries, gone))
        if missing := removed - found:
            raise FilesGone(
                f"table {'.'.join(self._table.name())} no longer has {min(missing)}: "
                "another change replaced it first"
            )
        return untouched

    def _check_deletes(self, known: Iterable[AvroRecord]) -> None:
        """Replace no files in which rows were deleted after the files were read."""
        for each in known:
            if each["content"] != DATA and each["sequence_number"] > self._change.read_at:
                raise FilesGone(
                    f"another program deleted rows of table {'.'.join(self._table.name())} while "
                    "its files were being replaced"
                )

    def _check_line(self) -> None:
        """Replace no files of a state that was rolled back: rows deleted in it may be back."""
        known = {each.snapshot_id: each for each in self._table.metadata.snapshots}
        snapshot, read_at = self._parent, self._change.read_at
        while snapshot is not None and (snapshot.sequence_number or 0) > read_at:
            snapshot = known.get(snapshot.parent_snapshot_id or 0)
        if snapshot is not None and (snapshot.sequence_number or 0) < read_at:
            raise FilesGone(
                f"table {'.'.join(self._table.name())} was rolled back while its files were being "
                "replaced"
            )

    def _check_added(self, known: Iterable[AvroRecord]) -> None:
        """Add no rows that were made without those that other changes added since."""
        read_at = self._change.read_at
        for each in known:
            if each["content"] != DATA or each["sequence_number"] <= read_at:
                continue
            entries = read_entries(self._table.io, each)
            if any(entry["sequence_number"] > read_at for entry in entries):
                raise FilesGone(
                    f"rows were added to table {'.'.join(self._table.name())} while others were "
                    "made from those that it had"
                )

    def _split(self, entries: Iterable[AvroRecord], gone: set[str]) -> Iterator[AvroRecord]:
        for entry in entries:
            if entry["data_file"]["file_path"] in gone:
                self._removed.append(entry["data_file"])
                yield {**entry, "status": DELETED, "snapshot_id": self.snapshot_id}
            else:
                yield {**entry, "status": EXISTING}

    def _merged(self, known: list[AvroRecord]) -> list[AvroRecord]:
        """Write the added files, together with what many small manifests of their spec name."""
        specs = {fact.spec_id for fact in self._change.added}
        current = specs.pop() if len(specs) == 1 else self._table.spec().spec_id
        merged = self._to_merge(
            [
                each
                for each in known
                if each["content"] == DATA
                and each["partition_spec_id"] == current
                and each["manifest_length"] < _SMALL_BYTES
            ]
        )
        entries = defaultdict[int, list[AvroRecord]](list)
        for manifest in merged:
            found = read_entries(self._table.io, manifest)
            entries[current] += [{**entry, "status": EXISTING} for entry in found]
        for fact in self._change.added:
            entries[fact.spec_id].append(added(fact, self.snapshot_id))
        for spec_id, some in entries.items():
            self._write(spec_id, some)
        return [each for each in known if each not in merged] if merged else known

    def _to_merge(self, small: list[AvroRecord]) -> list[AvroRecord]:
        """Manifests of about equal size, if there are many: then a file's entry is rewritten two or
        three times in all, not with each merge.
        """
        if self._change.merge_at is not None:
            return small if len(small) >= self._change.merge_at else []
        most = _MERGE_AT // 2 + self._table.metadata.table_uuid.int % _MERGE_AT
        kinds = defaultdict[int, list[AvroRecord]](list)
        for each in small:
            kinds[_kind(each)].append(each)
        for kind in sorted(kinds):
            if len(kinds[kind]) >= (_MERGE_LARGER_AT if kind else most):
                return kinds[kind]
        return []

    def _write(self, spec_id: int, entries: Iterable[AvroRecord]) -> None:
        spec = self._table.metadata.specs().get(spec_id)
        if spec is None:
            raise Conflict(
                f"table {'.'.join(self._table.name())} is no longer divided as it was when files "
                "were written for it: another change was first"
            )
        self._made.append(
            write_manifest(
                self._table.io,
                self._new(f"{self._id}-m{len(self._made)}.avro"),
                list(entries),
                spec,
                self._schema_for(spec),
                self.snapshot_id,
                self.sequence_number,
            )
        )

    def _schema_for(self, spec: PartitionSpec) -> Schema:
        """The present schema, or the newest one that has all columns of an older spec."""
        metadata, needed = self._table.metadata, {each.source_id for each in spec.fields}
        former = sorted(metadata.schemas, key=lambda each: each.schema_id, reverse=True)
        found = (each for each in (metadata.schema(), *former) if needed <= set(each.field_ids))
        return next(found, metadata.schema())

    def _new(self, name: str) -> str:
        path = f"{self._table.location()}/metadata/{name}"
        self.written.append(path)
        return path

    def summary(self) -> dict[str, str]:
        """What the snapshot changed and what the table holds now; call it last."""
        made = self._change.added
        gone = self._removed
        counts = {
            "added-data-files": len(made),
            "added-records": sum(fact.count for fact in made),
            "added-files-size": sum(fact.size_bytes for fact in made),
            "deleted-data-files": len(gone),
            "deleted-records": sum(file["record_count"] for file in gone),
            "removed-files-size": sum(file["file_size_in_bytes"] for file in gone),
            "changed-partition-count": len(
                {fact.partition for fact in made} | {partition_values(file) for file in gone}
            ),
        }
        return {
            "operation": self._operation,
            **{name: str(count) for name, count in counts.items() if count},
            **self._totals(counts),
            COMMIT_ID: self._change.commit_id,
            **self._change.summary,
        }

    @property
    def _operation(self) -> str:
        if self._change.rewrites:
            return "replace"
        return "overwrite" if self._removed else "append"

    def _totals(self, counts: Mapping[str, int]) -> dict[str, str]:
        """The parent's totals plus what changed; a total that the parent lacks is left out."""
        before = None if self._parent is None else self._parent.summary
        found = {}
        for name, (more, less) in _TOTALS.items():
            known = "0" if before is None else before.get(name)
            if known is not None:
                found[name] = str(int(known) + counts.get(more, 0) - counts.get(less, 0))
        return found
