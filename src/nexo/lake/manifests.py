"""Manifests and manifest lists as plain records, read and written with fastavro.

PyIceberg builds schemas, readers and writers again for every file, which took most of a commit.
Records are dicts with Iceberg's own field names; only format version 2 is written. A manifest's
record is encoded once, because every later manifest list repeats it.
"""

from __future__ import annotations

import io
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import cache
from typing import TYPE_CHECKING, Any, TypeAlias

import fastavro

from nexo.lake.avro import RecordSchema, container
from nexo.lake.files import DataFileFacts
from nexo.lake.paths import read_file, write_file
from nexo.lake.writing.layout import PartitionValues

if TYPE_CHECKING:
    from pyiceberg.io import FileIO
    from pyiceberg.partitioning import PartitionSpec
    from pyiceberg.schema import Schema

# ruff: noqa: PLC0415 - PyIceberg takes half a second to import

AvroRecord: TypeAlias = dict[str, Any]
EXISTING, ADDED, DELETED = 0, 1, 2
"""The status of an entry."""
DATA = 0
"""The content of a manifest of data files, not of deleted rows."""
_EPOCH, _EPOCH_DAY = datetime(1970, 1, 1, tzinfo=UTC), date(1970, 1, 1)
_MICROSECOND = timedelta(microseconds=1)
KEPT_LISTS = 1_000
"""Manifest lists that are kept in memory, at least."""
_ENCODED = "encoded"
"""In a manifest's record: the record, encoded for manifest lists."""


_lists: OrderedDict[str, list[AvroRecord]] = OrderedDict()
"""The last manifest list of each table that was written here; the next commit to it reads it."""
_most_lists = KEPT_LISTS
_writing = threading.Lock()


# -- reading ---------------------------------------------------------------------------


def read_list(files: FileIO, path: str) -> list[AvroRecord]:
    """The manifests of a snapshot that name files of the table."""
    return [each for each in read_whole_list(files, path) if _is_live(each)]


def read_whole_list(files: FileIO, path: str) -> list[AvroRecord]:
    found = _lists.get(path)
    return _read(files, path) if found is None else found


def _is_live(manifest: AvroRecord) -> bool:
    counts = manifest["added_files_count"], manifest["existing_files_count"]
    return any(count is None or count > 0 for count in counts)


def read_entries(files: FileIO, manifest: AvroRecord) -> list[AvroRecord]:
    """A manifest's entries that are not deleted, with the fields that they inherit from it."""
    found = []
    for entry in _read(files, manifest["manifest_path"]):
        if entry["status"] == DELETED:
            continue
        number = manifest["sequence_number"]
        if entry["snapshot_id"] is None:
            entry["snapshot_id"] = manifest["added_snapshot_id"]
        for name in ("sequence_number", "file_sequence_number"):
            if entry.get(name) is None:
                entry[name] = number
        found.append(entry)
    return found


def _read(files: FileIO, path: str) -> list[AvroRecord]:
    content = io.BytesIO(read_file(files, path))
    return [each for each in fastavro.reader(content) if isinstance(each, dict)]


# -- writing ---------------------------------------------------------------------------


def keep_lists(count: int) -> None:
    """Keep the lists of so many tables from now on, or of more."""
    global _most_lists  # noqa: PLW0603 - one cache for all tables of the process
    _most_lists = max(_most_lists, count)


def write_list(
    files: FileIO, path: str, manifests: list[AvroRecord], snapshot_id: int, parent_id: int | None,
    sequence_number: int, parent_path: str = "",
) -> None:  # fmt: skip
    """Write a snapshot's list, and keep it instead of its parent's."""
    head = {
        "snapshot-id": str(snapshot_id),
        "parent-snapshot-id": "null" if parent_id is None else str(parent_id),
        "sequence-number": str(sequence_number),
        "format-version": "2",
    }
    schema = _list_schema()
    for each in manifests:
        if _ENCODED not in each:
            each[_ENCODED] = schema.encode(each)
    write_file(files, path, container(schema, head, [each[_ENCODED] for each in manifests]))
    with _writing:
        _lists.pop(parent_path, None)
        _lists[path] = manifests
        if len(_lists) > _most_lists:
            _lists.popitem(last=False)


def write_manifest(
    files: FileIO,
    path: str,
    entries: Sequence[AvroRecord],
    spec: PartitionSpec,
    schema: Schema,
    snapshot_id: int,
    sequence_number: int,
) -> AvroRecord:
    """Write a manifest of data files; returns what its list says about it."""
    from pydantic_core import to_json

    head = {
        "schema": _schema_text(schema),
        "partition-spec": to_json(spec.fields).decode(),
        "partition-spec-id": str(spec.spec_id),
        "format-version": "2",
        "content": "data",
    }
    own = _entry_schema(spec, schema)
    content = container(own.schema, head, [own.encode(each) for each in entries])
    write_file(files, path, content)
    live = [each for each in entries if each["status"] != DELETED]
    numbers = [each["sequence_number"] or sequence_number for each in live]
    counts = {}
    for label, status in (("added", ADDED), ("existing", EXISTING), ("deleted", DELETED)):
        chosen = [each["data_file"] for each in entries if each["status"] == status]
        counts[f"{label}_files_count"] = len(chosen)
        counts[f"{label}_rows_count"] = sum(each["record_count"] for each in chosen)
    return {
        "manifest_path": path,
        "manifest_length": len(content),
        "partition_spec_id": spec.spec_id,
        "content": DATA,
        "sequence_number": sequence_number,
        "min_sequence_number": min(numbers, default=sequence_number),
        "added_snapshot_id": snapshot_id,
        **counts,
        "partitions": _partitions(spec, schema, entries),
        "key_metadata": None,
    }


def _partitions(
    spec: PartitionSpec, schema: Schema, entries: Sequence[AvroRecord]
) -> list[AvroRecord] | None:
    """The lowest and the highest value of each partition field; None if one is not understood."""
    from pyiceberg.transforms import UnknownTransform

    if any(isinstance(each.transform, UnknownTransform) for each in spec.fields):
        return None
    kinds = [each.field_type for each in _partition_type(spec, schema).fields]
    rows = [partition_values(each["data_file"]) for each in entries]
    return [_summary(kind, [row[number] for row in rows]) for number, kind in enumerate(kinds)]


def _summary(kind: Any, values: Sequence[Any]) -> AvroRecord:
    from pyiceberg.conversions import to_bytes

    known = [each for each in values if each is not None and each == each]  # noqa: PLR0124 - NaN
    return {
        "contains_null": None in values,
        "contains_nan": any(each != each for each in values),  # noqa: PLR0124 - NaN
        "lower_bound": to_bytes(kind, min(known)) if known else None,
        "upper_bound": to_bytes(kind, max(known)) if known else None,
    }


def partition_values(file: AvroRecord) -> PartitionValues:
    """A file's values of the partition fields; dates and times as numbers."""
    return tuple(_number(each) for each in file["partition"].values())


def _number(value: Any) -> Any:
    if isinstance(value, datetime):
        moment = value if value.tzinfo else value.replace(tzinfo=UTC)
        return (moment - _EPOCH) // _MICROSECOND
    return (value - _EPOCH_DAY).days if isinstance(value, date) else value


def added(fact: DataFileFacts, snapshot_id: int) -> AvroRecord:
    """An entry of a new file; one without a commit inherits the number of its manifest."""
    return {
        "status": ADDED,
        "snapshot_id": snapshot_id,
        "sequence_number": fact.commit,
        "file_sequence_number": None,
        "data_file": {
            "content": DATA,
            "file_path": fact.path,
            "file_format": "PARQUET",
            "partition": dict(enumerate(fact.partition)),
            "record_count": fact.count,
            "file_size_in_bytes": fact.size_bytes,
            "column_sizes": _pairs(fact.column_sizes),
            "value_counts": _pairs(fact.value_counts),
            "null_value_counts": _pairs(fact.null_counts),
            "lower_bounds": _pairs(fact.lower),
            "upper_bounds": _pairs(fact.upper),
            "split_offsets": fact.split_offsets,
        },
    }


def _schema_text(schema: Schema) -> str:
    """A table's schema as JSON; cached for as long as it is the same object."""
    known = _schema_texts.get(id(schema))
    if known is None or known[0] is not schema:
        if len(_schema_texts) >= _most_lists:
            _schema_texts.clear()
        known = _schema_texts[id(schema)] = schema, schema.model_dump_json()
    return known[1]


_schema_texts: dict[int, tuple[Schema, str]] = {}


def _partition_type(spec: PartitionSpec, schema: Schema) -> Any:
    """The types of a spec's fields; cached for as long as both are the same objects."""
    known = _partition_types.get((id(spec), id(schema)))
    if known is None or known[0] is not spec or known[1] is not schema:
        if len(_partition_types) >= _most_lists:
            _partition_types.clear()
        known = spec, schema, spec.partition_type(schema)
        _partition_types[id(spec), id(schema)] = known
    return known[2]


_partition_types: dict[tuple[int, int], tuple[PartitionSpec, Schema, Any]] = {}


def _pairs(found: Mapping[int, Any]) -> list[AvroRecord]:
    return [{"key": key, "value": value} for key, value in found.items()]


@cache
def _list_schema() -> RecordSchema:
    from pyiceberg.manifest import MANIFEST_LIST_FILE_SCHEMAS
    from pyiceberg.utils.schema_conversion import AvroSchemaConversion

    schema = MANIFEST_LIST_FILE_SCHEMAS[2]
    converted = AvroSchemaConversion().iceberg_to_avro(schema, schema_name="manifest_file")
    return RecordSchema.of(converted)


@dataclass(frozen=True, slots=True)
class _EntrySchema:
    """The schema of entries; Avro's names of the partition fields may be others than Iceberg's."""

    schema: RecordSchema
    partition: tuple[str, ...]

    def encode(self, entry: AvroRecord) -> bytes:
        values = partition_values(entry["data_file"])
        named = dict(zip(self.partition, values, strict=True))
        return self.schema.encode(
            {**entry, "data_file": {**entry["data_file"], "partition": named}}
        )


_entry_schemas: dict[str, _EntrySchema] = {}


def _entry_schema(spec: PartitionSpec, schema: Schema) -> _EntrySchema:
    """The schema of entries, which depends on how the table is partitioned."""
    from pyiceberg.manifest import data_file_with_partition, manifest_entry_schema_with_data_file
    from pyiceberg.utils.schema_conversion import AvroSchemaConversion

    partition = _partition_type(spec, schema)
    key = str(partition)
    if key not in _entry_schemas:
        kind = data_file_with_partition(partition, format_version=2)
        entry = manifest_entry_schema_with_data_file(format_version=2, data_file=kind)
        converted: Any = AvroSchemaConversion().iceberg_to_avro(entry, schema_name="manifest_entry")
        file = next(each for each in converted["fields"] if each["name"] == "data_file")
        record = next(each for each in file["type"]["fields"] if each["name"] == "partition")
        names = tuple(each["name"] for each in record["type"]["fields"])
        _entry_schemas[key] = _EntrySchema(RecordSchema.of(converted), names)
    return _entry_schemas[key]
