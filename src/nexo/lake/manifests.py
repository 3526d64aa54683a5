"""Manifests and manifest lists as plain records, read and written with fastavro.

PyIceberg builds schemas, readers and writers again for every file, which took most of a commit.
Records are dicts with Iceberg's own field names; only format version 2 is written. A manifest's
record is encoded once, because every later manifest list repeats it.
"""

from __future__ import annotations

import io
import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from datetime import date
from functools import cache
from typing import TYPE_CHECKING, Any, TypeAlias

import fastavro

from nexo.lake.avro import RecordSchema, container
from nexo.lake.files import DataFileFacts
from nexo.lake.paths import read_file, write_file

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
_EPOCH = date(1970, 1, 1)
_KEPT_LISTS = 1_000
_ENCODED = "encoded"
"""In a manifest's record: the record, encoded for manifest lists."""


_lists: OrderedDict[str, list[AvroRecord]] = OrderedDict()
"""Manifest lists that were written here; the next commit to their table reads them."""
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


def write_list(
    files: FileIO, path: str, manifests: list[AvroRecord], snapshot_id: int, parent_id: int | None,
    sequence_number: int,
) -> None:  # fmt: skip
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
        _lists[path] = manifests
        if len(_lists) > _KEPT_LISTS:
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
    content = container(own, head, [own.encode(each) for each in entries])
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
        "partitions": _partitions(spec, entries),
        "key_metadata": None,
    }


def _partitions(spec: PartitionSpec, entries: Iterable[AvroRecord]) -> list[AvroRecord] | None:
    """The days of the files; None for a table that is partitioned in another way."""
    from pyiceberg.transforms import DayTransform

    if len(spec.fields) != 1 or not isinstance(spec.fields[0].transform, DayTransform):
        return None if spec.fields else []
    name = spec.fields[0].name
    days = [_day(each["data_file"]["partition"][name]) for each in entries]
    known = [day for day in days if day is not None]
    return [
        {
            "contains_null": len(known) < len(days),
            "contains_nan": False,
            "lower_bound": _bound(min(known, default=None)),
            "upper_bound": _bound(max(known, default=None)),
        }
    ]


def _day(value: date | int | None) -> int | None:
    return (value - _EPOCH).days if isinstance(value, date) else value


def _bound(day: int | None) -> bytes | None:
    return None if day is None else day.to_bytes(4, "little", signed=True)


def added(fact: DataFileFacts, spec: PartitionSpec, snapshot_id: int) -> AvroRecord:
    """An entry of a new file, which inherits the sequence number of its manifest."""
    return {
        "status": ADDED,
        "snapshot_id": snapshot_id,
        "sequence_number": None,
        "file_sequence_number": None,
        "data_file": {
            "content": DATA,
            "file_path": fact.path,
            "file_format": "PARQUET",
            "partition": {} if fact.day is None else {spec.fields[0].name: fact.day},
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
        if len(_schema_texts) >= _KEPT_LISTS:
            _schema_texts.clear()
        known = _schema_texts[id(schema)] = schema, schema.model_dump_json()
    return known[1]


_schema_texts: dict[int, tuple[Schema, str]] = {}


def _pairs(found: Mapping[int, Any]) -> list[AvroRecord]:
    return [{"key": key, "value": value} for key, value in found.items()]


@cache
def _list_schema() -> RecordSchema:
    from pyiceberg.manifest import MANIFEST_LIST_FILE_SCHEMAS
    from pyiceberg.utils.schema_conversion import AvroSchemaConversion

    schema = MANIFEST_LIST_FILE_SCHEMAS[2]
    converted = AvroSchemaConversion().iceberg_to_avro(schema, schema_name="manifest_file")
    return RecordSchema.of(converted)


_entry_schemas: dict[str, RecordSchema] = {}


def _entry_schema(spec: PartitionSpec, schema: Schema) -> RecordSchema:
    """The schema of entries, which depends on how the table is partitioned."""
    from pyiceberg.manifest import data_file_with_partition, manifest_entry_schema_with_data_file
    from pyiceberg.utils.schema_conversion import AvroSchemaConversion

    key = "; ".join(f"{each.field_id} {each}" for each in spec.fields)
    if key not in _entry_schemas:
        kind = data_file_with_partition(spec.partition_type(schema), format_version=2)
        entry = manifest_entry_schema_with_data_file(format_version=2, data_file=kind)
        converted = AvroSchemaConversion().iceberg_to_avro(entry, schema_name="manifest_entry")
        _entry_schemas[key] = RecordSchema.of(converted)
    return _entry_schemas[key]
