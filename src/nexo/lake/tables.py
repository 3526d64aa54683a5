"""What the streams' tables are called, and the properties that say whose they are."""

from __future__ import annotations

import json
import re
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from nexo.errors import Conflict
from nexo.lake.paths import read_metadata

if TYPE_CHECKING:
    from pyiceberg.partitioning import PartitionSpec
    from pyiceberg.schema import Schema
    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot

STREAM, CREATED_MS, OFFSETS = "nexo.stream", "nexo.created-ms", "nexo.offsets"
KIND, COLUMNS, MISSING = "nexo.kind", "nexo.columns", "nexo.missing"
"""Table properties: the stream, its offsets in the table (`nexo.lake.once`), which records the
table holds (all, the newest per key, or those that typed columns rejected), the typed columns, and
offsets whose records were lost to the table."""
USER = "nexo.table"
"""A table property: what users call a table that their code fills (`nexo.lake.user_tables`)."""
TERMS = "nexo.keyed"
"""A property of a table of rows by key: the keys, and whether all versions are kept."""
BESIDE = "nexo.beside"
"""A property of the tables beside one: its name."""
ORPHANS = "nexo.offsets-of"
"""A table property: offsets that snapshots hold which neither say so nor have a parent left."""
RECORDS, NEWEST, DEAD_LETTERS = "records", "latest", "dead letters"
FORMAT_VERSION = 2
"""Of Iceberg, of the tables that are read and written."""
POSITION_DELETES = 1
"""Iceberg's content type of files that hold positions of deleted rows."""
PATH_ID = 2147483546
"""The field id of a data file's path in such files."""
SUFFIXES = {NEWEST: "_latest", DEAD_LETTERS: "_dead_letters"}
"""How the names of derived tables end, by kind."""


_PLAIN = re.compile(r"[a-z][a-z0-9_]{0,120}")
GENERAL_VIEWS = {"stream_messages", "stream_offsets", "stream_groups"}
"""Views over all streams, whose names no stream's table may have."""


@dataclass(frozen=True, slots=True)
class StreamId:
    """A stream; ``created_ms`` distinguishes it from another one of the same name."""

    name: str
    created_ms: int


def table_name(stream: str, kind: str = RECORDS) -> str:
    """The name of a stream's table: the stream's own if SQL allows it, else readable and unique."""
    suffix = SUFFIXES.get(kind, "")
    if _PLAIN.fullmatch(stream) and stream not in GENERAL_VIEWS:
        return stream + suffix
    digest = _digest(stream)
    readable = re.sub(r"[^a-z0-9]+", "_", stream.lower()).strip("_")[:80]
    return f"s_{readable}_{digest}{suffix}"


def table_names(stream: str, kind: str) -> Iterator[str]:
    """The name of a table, and its name if another stream has the first."""
    own = table_name(stream, kind)
    yield own
    digest = _digest(f"{stream}\n{SUFFIXES.get(kind, '')}")
    yield f"{own}_{digest}"


def _digest(text: str) -> str:
    from hashlib import blake2s  # noqa: PLC0415 - loads OpenSSL

    return blake2s(text.encode(), digest_size=4).hexdigest()


def derived_view(stream: str, kind: str, taken: Container[str]) -> str:
    """The SQL view of a derived table; ``taken`` are the views of streams."""
    own, other = table_names(stream, kind)
    return other if own in taken else own


def check_version(label: str, version: int) -> None:
    """`Conflict` if a table is of a version of Iceberg's format that is not understood."""
    if version != FORMAT_VERSION:
        raise Conflict(
            f"table {label} is of Iceberg's format version {version}, Nexo reads and writes "
            f"version {FORMAT_VERSION}, and no table goes back: with the program that upgraded it, "
            f"copy its rows and its properties nexo.* into a table of version {FORMAT_VERSION}, "
            "and give that one its name"
        )


def belongs(properties: Mapping[str, str], stream: str, kind: str) -> bool:
    return properties.get(STREAM) == stream and properties.get(KIND, RECORDS) == kind


def is_of(properties: Mapping[str, str], stream: StreamId) -> bool:
    """Whether a table of the stream's name is this stream's, not an earlier one's."""
    return int(properties.get(CREATED_MS, stream.created_ms)) == stream.created_ms


def offsets_of(properties: Mapping[str, str], name: str = OFFSETS) -> dict[int, int]:
    """Per partition: the table holds everything below, or what another property says."""
    found: dict[str, int] = noted(properties, name)
    return {int(partition): offset for partition, offset in found.items()}


def noted(properties: Mapping[str, str], name: str, default: str = "{}") -> Any:
    """What a property of ours says; `Conflict` if another program made it unreadable."""
    try:
        return msgspec.json.decode(properties.get(name, default))
    except msgspec.DecodeError as error:
        raise Conflict(
            f"the property {name} of the table is not as Nexo wrote it ({error}): set it back"
        ) from None


def held_offsets(table: Table) -> dict[int, int]:
    """Per partition: what the table's present snapshot holds.

    The property is of the last commit, which another program may have rolled back since: so the
    snapshot's own summary counts, or that of the last one before it that has one.
    """
    return held(table.properties, _line(table))


def _line(table: Table) -> Iterator[str | None]:
    """What the present snapshot and its parents say, then those that are no longer there."""
    yield from _said(table, newest_snapshot(table))
    files = [each.metadata_file for each in reversed(table.metadata.metadata_log)]
    contents = (read_metadata(each, table.io) for each in files)
    yield said_formerly(table.metadata.current_snapshot_id, contents)


def _said(table: Table, snapshot: Snapshot | None) -> Iterator[str | None]:
    """What a snapshot and its parents say of their offsets."""
    if snapshot is not None and (text := said_by(snapshot)) is not None:
        yield text  # as almost always, before anything else is looked at
    orphans = orphan_offsets(table.properties)
    known = {each.snapshot_id: each for each in table.metadata.snapshots}
    while snapshot is not None:
        yield said_by(snapshot) or orphans.get(str(snapshot.snapshot_id))
        snapshot = known.get(snapshot.parent_snapshot_id or 0)


def said_by(snapshot: Snapshot) -> str | None:
    """What a snapshot says of its offsets; those of other programs say nothing."""
    return None if snapshot.summary is None else snapshot.summary.get(OFFSETS)


def said_formerly(number: int | None, files: Iterator[bytes]) -> str | None:
    """What a snapshot's parents said that others have expired: former metadata still has them.

    ``files`` are the contents of that, the newest first.
    """
    with suppress(FileNotFoundError):  # it is deleted after some commits
        for content in files:
            metadata = msgspec.json.decode(content)
            orphans = orphan_offsets(metadata.get("properties", {}))
            known = {each["snapshot-id"]: each for each in metadata.get("snapshots", ())}
            if number not in known:
                return None
            parent = number
            while parent in known:
                number = parent
                said: str | None = known[number].get("summary", {}).get(OFFSETS)
                if found := said or orphans.get(str(number)):
                    return found
                parent = known[number].get("parent-snapshot-id")
    return None


def held(properties: Mapping[str, str], line: Iterator[str | None]) -> dict[int, int]:
    """The same, from what the present snapshot and its parents say, if they do."""
    found = next((each for each in line if each is not None), None)
    return offsets_of(properties) if found is None else offsets_of({OFFSETS: found})


def orphan_offsets(properties: Mapping[str, str]) -> dict[str, str]:
    """By snapshot: what its parents, which are gone, said of its offsets."""
    found: dict[str, str] = noted(properties, ORPHANS)
    return found


def orphans_without(table: Table, gone: Container[int]) -> dict[str, str]:
    """The same once some snapshots are gone."""
    known = {each.snapshot_id: each for each in table.metadata.snapshots}
    found = {}
    for number, snapshot in known.items():
        parent = snapshot.parent_snapshot_id
        kept = parent in known and parent not in gone
        if number in gone or kept or said_by(snapshot) is not None:
            continue
        text = next((each for each in _said(table, snapshot) if each is not None), None)
        if text is not None:
            found[str(number)] = text
    return found


def missing(properties: Mapping[str, str]) -> dict[int, int]:
    """Per partition: records that were lost to the table, which the broker no longer had."""
    found = missing_ranges(properties)
    return {partition: sum(end - first for first, end in gaps) for partition, gaps in found.items()}


def missing_ranges(properties: Mapping[str, str]) -> dict[int, list[tuple[int, int]]]:
    """Per partition: their first offsets, and one past their last."""
    found: dict[str, list[tuple[int, int]]] = noted(properties, MISSING)
    return {int(partition): gaps for partition, gaps in found.items()}


def missing_text(properties: Mapping[str, str], gaps: Mapping[int, tuple[int, int]]) -> str:
    """The property's text with more gaps: a partition's first missing offset, and one past it."""
    found: dict[str, list[Sequence[int]]] = noted(properties, MISSING)
    for partition, gap in gaps.items():
        found.setdefault(str(partition), []).append(gap)
    return json.dumps(found, sort_keys=True)


def offsets_text(offsets: Mapping[int, int]) -> str:
    """The property's text; sorted, so that equal offsets are equal texts."""
    return json.dumps({str(key): offsets[key] for key in sorted(offsets)})


def read_point(table: Table) -> int:
    """The sequence number of what a table object shows: a later commit has a higher one."""
    snapshot = newest_snapshot(table)
    return 0 if snapshot is None else snapshot.sequence_number or 0


def newest_snapshot(table: Table) -> Snapshot | None:
    """A table's current snapshot, None before the first: PyIceberg looks for it from the oldest."""
    metadata = table.metadata
    number = metadata.current_snapshot_id
    found = (each for each in reversed(metadata.snapshots) if each.snapshot_id == number)
    return next(found, None)


def only_added(before: Table, now: Table) -> bool:
    """Whether a table has all rows that it had: since then, rows were only added, or moved.

    Programs say so of their commits. If a snapshot between the two is gone, it is not known.
    """
    if before.metadata.table_uuid != now.metadata.table_uuid:
        return False
    known = {each.snapshot_id: each for each in now.metadata.snapshots}
    wanted, number = before.metadata.current_snapshot_id, now.metadata.current_snapshot_id
    while number is not None and number != wanted:
        snapshot = known.get(number)
        if snapshot is None or snapshot.summary is None:
            return False
        if snapshot.summary.operation.value not in ("append", "replace"):
            return False
        number = snapshot.parent_snapshot_id
    return number == wanted


@dataclass(frozen=True, slots=True)
class NewTable:
    """A table to be made."""

    name: str
    schema: Schema
    spec: PartitionSpec
    properties: dict[str, str]
