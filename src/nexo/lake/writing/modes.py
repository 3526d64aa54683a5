"""Which files of a table a write replaces: none, all, or those of some partitions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from nexo.errors import InvalidInput
from nexo.lake.manifests import DATA, AvroRecord, partition_values, read_entries, read_list
from nexo.lake.tables import newest_snapshot

if TYPE_CHECKING:
    from pyiceberg.table import Table

ReplacedFiles = Callable[["Table"], frozenset[str]]
"""The paths of a table's files that a write replaces."""


def live_entries(table: Table) -> Iterator[AvroRecord]:
    """Every data file of a table, as its manifests describe it."""
    snapshot = newest_snapshot(table)
    if snapshot is None:
        return
    for manifest in read_list(table.io, snapshot.manifest_list):
        if manifest["content"] == DATA:
            for entry in read_entries(table.io, manifest):
                yield {**entry, "spec_id": manifest["partition_spec_id"]}


def all_files(table: Table) -> frozenset[str]:
    """Every file."""
    return frozenset(str(entry["data_file"]["file_path"]) for entry in live_entries(table))


def files_where(values: Mapping[str, Any]) -> ReplacedFiles:
    """The files of one partition, ``{"day": date(2026, 11, 19)}``."""
    return partial(_files_where, values=dict(values))


def _files_where(table: Table, values: Mapping[str, Any]) -> frozenset[str]:
    found = set()
    for entry in live_entries(table):
        spec = table.specs()[entry["spec_id"]]
        names = [each.name for each in spec.fields]
        if unknown := values.keys() - set(names):
            raise InvalidInput(
                f"table {'.'.join(table.name())} is not divided by {min(unknown)!r} in all of its "
                f"files: only whole partitions can be replaced, by {names or 'none'}"
            )
        held = dict(zip(names, partition_values(entry["data_file"]), strict=True))
        if all(held[name] == value for name, value in values.items()):
            found.add(str(entry["data_file"]["file_path"]))
    return frozenset(found)
