"""A table's next snapshot, built directly: one manifest, one manifest list, one metadata update.

PyIceberg's transactions copy a table's whole metadata several times per commit. Here the files are
written once and the catalog applies one update. Each commit also does a little of the work that
keeps later commits cheap: it merges small manifests and expires the oldest snapshots.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from nexo.errors import Conflict
from nexo.lake.files import DataFileFacts

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile, ManifestEntry, ManifestFile, ManifestWriter
    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Summary

# ruff: noqa: PLC0415 - PyIceberg takes half a second to import

COMMIT_ID = "nexo.commit-id"
"""In a snapshot's summary: which commit made it."""
KEEP_SNAPSHOTS = 100
EXPIRE_STEP = 20
"""Most snapshots that one commit expires."""
_MERGE_AT = 24
_SMALL_BYTES = 256 * 1024
"""A commit merges manifests smaller than this once there are `_MERGE_AT` of them."""
_KEPT = "history.expire.min-snapshots-to-keep"
_BRANCH = "main"


class FilesGone(Conflict):
    """The table no longer names a file that was to be replaced: another change was first."""


@dataclass(frozen=True, slots=True)
class TableChange:
    """What a commit does to a table's files and properties."""

    commit_id: str
    added: Sequence[DataFileFacts] = ()
    removed: frozenset[str] = frozenset()
    """Paths of files that go."""
    properties: Mapping[str, str] = field(default_factory=dict)
    summary: Mapping[str, str] = field(default_factory=dict)
    merge_at: int = _MERGE_AT
    rewrites: bool = False
    """Whether the added files hold the same rows as the removed ones."""


@dataclass(frozen=True, slots=True)
class Draft:
    """A metadata update that the catalog has not applied yet, and the files written for it."""

    updates: tuple[Any, ...]
    requirements: tuple[Any, ...]
    written: tuple[str, ...] = ()


def draft(table: Table, change: TableChange) -> Draft:
    """Write a change's manifests; raises `FilesGone` if the table lacks a file to be removed."""
    from pyiceberg.table.refs import SnapshotRefType
    from pyiceberg.table.snapshots import Snapshot
    from pyiceberg.table.update import (
        AddSnapshotUpdate,
        AssertRefSnapshotId,
        AssertTableUUID,
        RemoveSnapshotsUpdate,
        SetPropertiesUpdate,
        SetSnapshotRefUpdate,
    )

    metadata, parent = table.metadata, table.current_snapshot()
    parent_id = None if parent is None else parent.snapshot_id
    builder = _Builder(table, change)
    snapshot = Snapshot.model_validate(
        {
            "snapshot-id": builder.snapshot_id,
            "parent-snapshot-id": parent_id,
            "manifest-list": builder.manifest_list(),
            "sequence-number": builder.sequence_number,
            "summary": builder.summary(),
            "schema-id": metadata.current_schema_id,
        }
    )
    updates: list[Any] = [AddSnapshotUpdate(snapshot=snapshot)]
    if change.properties:
        updates.insert(0, SetPropertiesUpdate(updates=dict(change.properties)))
    updates.append(
        SetSnapshotRefUpdate.model_validate(
            {
                "ref-name": _BRANCH,
                "type": SnapshotRefType.BRANCH,
                "snapshot-id": snapshot.snapshot_id,
            }
        )
    )
    if old := expired(table, _kept(table) - 1, EXPIRE_STEP):
        updates.append(RemoveSnapshotsUpdate.model_validate({"snapshot-ids": old}))
    required = (
        AssertTableUUID(uuid=metadata.table_uuid),
        AssertRefSnapshotId.model_validate({"ref": _BRANCH, "snapshot-id": parent_id}),
    )
    return Draft(tuple(updates), required, tuple(builder.written))


def expiry(table: Table, keep: int) -> Draft | None:
    """An update that expires all but the newest ``keep`` snapshots; None if none is older."""
    from pyiceberg.table.update import AssertTableUUID, RemoveSnapshotsUpdate

    old = expired(table, keep)
    if not old:
        return None
    required = (AssertTableUUID(uuid=table.metadata.table_uuid),)
    return Draft((RemoveSnapshotsUpdate.model_validate({"snapshot-ids": old}),), required)


def expired(table: Table, keep: int, most: int | None = None) -> list[int]:
    """The oldest snapshots beyond ``keep``, but those that a tag or a branch names."""
    named = {ref.snapshot_id for ref in table.metadata.refs.values()}
    ordered = sorted(table.metadata.snapshots, key=lambda each: each.sequence_number or 0)
    old = ordered[: max(len(ordered) - keep, 0)]
    return [each.snapshot_id for each in old if each.snapshot_id not in named][:most]


def landed(table: Table, commit_id: str) -> bool:
    """Whether a commit is part of a table, whatever the catalog said about it."""
    return any(
        snapshot.summary is not None and snapshot.summary.get(COMMIT_ID) == commit_id
        for snapshot in reversed(table.metadata.snapshots)
    )


def _kept(table: Table) -> int:
    given = table.properties.get(_KEPT, "")
    return max(int(given), 1) if given.isdigit() else KEEP_SNAPSHOTS


class _Builder:
    """Writes one snapshot's manifests and their list."""

    def __init__(self, table: Table, change: TableChange) -> None:
        self._table = table
        self._change = change
        self._id = uuid.uuid4()
        self._removed: list[DataFile] = []
        self._made: list[ManifestFile] = []
        self.snapshot_id = table.metadata.new_snapshot_id()
        self.sequence_number = table.metadata.next_sequence_number()
        self.written: list[str] = []

    @cached_property
    def _added(self) -> list[DataFile]:
        return data_files(self._table, self._change.added)

    def manifest_list(self) -> str:
        """Write everything; returns the list's path."""
        from pyiceberg.manifest import write_manifest_list

        parent = self._table.current_snapshot()
        known = [] if parent is None else parent.manifests(self._table.io)
        kept = self._merged(self._without_removed([each for each in known if _is_live(each)]))
        path = self._new(f"snap-{self.snapshot_id}-0-{self._id}.avro")
        with write_manifest_list(
            format_version=self._table.metadata.format_version,
            output_file=self._table.io.new_output(path),
            snapshot_id=self.snapshot_id,
            parent_snapshot_id=None if parent is None else parent.snapshot_id,
            sequence_number=self.sequence_number,
            avro_compression="deflate",
        ) as writer:
            writer.add_manifests([*self._made, *kept])
        return path

    def _without_removed(self, known: list[ManifestFile]) -> list[ManifestFile]:
        """Manifests that name no removed file; what the others keep is written again."""
        removed = self._change.removed
        if not removed:
            return known
        untouched, found = [], set[str]()
        for manifest in known:
            entries = self._entries(manifest) if _is_data(manifest) else []
            gone = {entry.data_file.file_path for entry in entries} & removed
            if not gone:
                untouched.append(manifest)
                continue
            found |= gone
            self._write(manifest.partition_spec_id, self._split(entries, gone))
        if missing := removed - found:
            raise FilesGone(
                f"table {'.'.join(self._table.name())} no longer has {min(missing)}: "
                "another change replaced it first"
            )
        return untouched

    def _split(
        self, entries: Sequence[ManifestEntry], gone: set[str]
    ) -> Callable[[ManifestWriter], None]:
        def fill(writer: ManifestWriter) -> None:
            for entry in entries:
                if entry.data_file.file_path in gone:
                    self._removed.append(entry.data_file)
                    writer.delete(entry)
                else:
                    writer.existing(entry)

        return fill

    def _merged(self, known: list[ManifestFile]) -> list[ManifestFile]:
        """Write the added files, together with what many small manifests name."""
        spec_id = self._table.metadata.default_spec_id
        small = [
            each
            for each in known
            if _is_data(each)
            and each.partition_spec_id == spec_id
            and each.manifest_length < _SMALL_BYTES
        ]
        merged = small if len(small) >= self._change.merge_at else []
        if self._added or merged:
            self._write(spec_id, lambda writer: self._add_all(writer, merged))
        return [each for each in known if each not in merged]

    def _add_all(self, writer: ManifestWriter, merged: Iterable[ManifestFile]) -> None:
        from pyiceberg.manifest import ManifestEntry, ManifestEntryStatus

        for manifest in merged:
            for entry in self._entries(manifest):
                writer.existing(entry)
        for data_file in self._added:
            entry = ManifestEntry.from_args(
                status=ManifestEntryStatus.ADDED,
                snapshot_id=self.snapshot_id,
                sequence_number=None,
                file_sequence_number=None,
                data_file=data_file,
            )
            writer.add(entry)

    def _entries(self, manifest: ManifestFile) -> list[ManifestEntry]:
        return manifest.fetch_manifest_entry(self._table.io, discard_deleted=True)

    def _write(self, spec_id: int, fill: Callable[[ManifestWriter], None]) -> None:
        from pyiceberg.manifest import write_manifest

        metadata = self._table.metadata
        with write_manifest(
            format_version=metadata.format_version,
            spec=metadata.specs()[spec_id],
            schema=metadata.schema(),
            output_file=self._table.io.new_output(self._new(f"{self._id}-m{len(self._made)}.avro")),
            snapshot_id=self.snapshot_id,
            avro_compression="deflate",
        ) as writer:
            fill(writer)
        self._made.append(writer.to_manifest_file())

    def _new(self, name: str) -> str:
        path = f"{self._table.location()}/metadata/{name}"
        self.written.append(path)
        return path

    def summary(self) -> Summary:
        """What the snapshot changed and what the table holds now; call it last."""
        from pyiceberg.table.snapshots import (
            Operation,
            SnapshotSummaryCollector,
            Summary,
            update_snapshot_summaries,
        )

        metadata, parent = self._table.metadata, self._table.current_snapshot()
        schema, specs = metadata.schema(), metadata.specs()
        counts = SnapshotSummaryCollector()
        for added in self._added:
            counts.add_file(added, schema, metadata.spec())
        for removed in self._removed:
            counts.remove_file(removed, schema, specs[removed.spec_id])
        own = {COMMIT_ID: self._change.commit_id, **self._change.summary}
        operation = Operation.OVERWRITE if self._removed else Operation.APPEND
        made = update_snapshot_summaries(
            Summary(operation=operation, **counts.build(), **own),
            None if parent is None else parent.summary,
        )
        if self._change.rewrites:
            return made.model_copy(update={"operation": Operation.REPLACE})
        return made


def _is_data(manifest: ManifestFile) -> bool:
    from pyiceberg.manifest import ManifestContent

    return manifest.content == ManifestContent.DATA


def _is_live(manifest: ManifestFile) -> bool:
    return manifest.has_added_files() or manifest.has_existing_files()


def data_files(table: Table, facts: Iterable[DataFileFacts]) -> list[DataFile]:
    """Manifest entries of a table's current partition spec."""
    return list(_data_files(facts, table.metadata.default_spec_id))


def _data_files(facts: Iterable[DataFileFacts], spec_id: int) -> Iterator[DataFile]:
    from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
    from pyiceberg.typedef import Record

    for fact in facts:
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
        made.spec_id = spec_id
        yield made
