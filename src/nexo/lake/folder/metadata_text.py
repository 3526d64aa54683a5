"""A table's metadata as JSON, of which a commit changes little.

Most of it are the kept snapshots. They do not change, so the text of each is made once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot

Texts: TypeAlias = dict[str, tuple[Snapshot, str]]
"""Snapshots and their JSON, by the path of their manifest list."""


def snapshot_texts(metadata: TableMetadata, known: Mapping[str, tuple[Snapshot, str]]) -> Texts:
    """The JSON of every snapshot, taken from ``known`` where that is of the same object."""
    found: Texts = {}
    for each in metadata.snapshots:
        kept = known.get(each.manifest_list)
        is_same = kept is not None and kept[0] is each
        found[each.manifest_list] = kept if is_same and kept else (each, each.model_dump_json())
    return found


def encoded(metadata: TableMetadata, texts: Texts) -> bytes:
    """The whole metadata, as Iceberg has it."""
    rest = metadata.model_dump_json(exclude={"snapshots"})
    snapshots = ",".join(text for _, text in texts.values())
    return f'{rest[:-1]},"snapshots":[{snapshots}]}}'.encode()
