"""How many buckets a table of rows by key has: as many as its size asks for.

More buckets are a new partition spec; the files are then rewritten by it, those of a bucket at a
time. If that is cut off, the next merge goes on: files of an older spec are always rewritten first.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import pyarrow.parquet as pq

from nexo.errors import Conflict
from nexo.lake.commit import refresh
from nexo.lake.failures import lake_errors
from nexo.lake.files import DataFileFacts, FileWriter, target
from nexo.lake.maintenance.maintain import replace_files
from nexo.lake.manifests import read_entries, read_list
from nexo.lake.paths import delete_files, local_path
from nexo.lake.progress import total
from nexo.lake.rows import CHUNK_ROWS
from nexo.lake.tables import newest_snapshot, read_point

if TYPE_CHECKING:
    from pyiceberg.table import Table

# ruff: noqa: PLC0415 - PyIceberg takes half a second to import

MOST_BYTES, USUAL_BYTES = 64 * 1024**2, 24 * 1024**2
"""A bucket of more, on average, is divided into buckets of about the other size."""
MOST_BUCKETS = 8_192


def buckets_of(table: Table) -> int:
    """Into how many parts a table is divided by its key."""
    found = 1
    for field in table.spec().fields:
        found *= int(str(getattr(field.transform, "num_buckets", 1)))
    return found


def bucket_counts(keys: Sequence[str], buckets: int) -> list[int]:
    """Into how many parts each column divides: the key, or the first two columns of it."""
    return [buckets] if len(keys) == 1 else [max(math.isqrt(buckets), 1)] * 2


def arrange(rows: Table, state: Table, changes: Table, keys: Sequence[str]) -> None:
    """Divide rows and what is beside them alike, into as many buckets as the rows' size asks for.

    The others follow the rows, also if that was cut off before. Changes that wait stay as they are,
    in the order in which they came; further ones are divided so.
    """
    counts = bucket_counts(keys, wanted_buckets(refresh(rows)))
    for table in (rows, state, changes):
        divide(refresh(table), keys, counts)
        if table is not changes:
            settle(table)


def wanted_buckets(table: Table) -> int:
    """How many buckets a table is to have."""
    now, size = buckets_of(table), total(table, "total-files-size")
    if size <= now * MOST_BYTES or now >= MOST_BUCKETS:
        return now
    return min(1 << math.ceil(math.log2(size / USUAL_BYTES)), MOST_BUCKETS)


def divide(table: Table, keys: Sequence[str], counts: Sequence[int]) -> None:
    """Have files written into so many buckets from now on."""
    if not table.spec().is_unpartitioned() and buckets_of(table) == math.prod(counts):
        return
    from pyiceberg.transforms import BucketTransform

    with (
        lake_errors(f"cannot divide table {'.'.join(table.name())}"),
        table.update_spec() as update,
    ):
        for field in table.spec().fields:
            update.remove_field(field.name)
        for column, count in zip(keys, counts, strict=False):
            update.add_field(column, BucketTransform(count), f"{column}_bucket_{count}")
    refresh(table)


def settle(table: Table) -> int:
    """Rewrite the files that are divided as the table was before; returns how many."""
    snapshot, current = newest_snapshot(table), table.spec().spec_id
    if snapshot is None:
        return 0
    read_at = read_point(table)
    old: list[str] = []
    for manifest in read_list(table.io, snapshot.manifest_list):
        if manifest["partition_spec_id"] != current:
            entries = read_entries(table.io, manifest)
            old += [entry["data_file"]["file_path"] for entry in entries]
    if not old:
        return 0
    made: list[DataFileFacts] = []
    try:
        for path in old:
            made += _rewritten(table, path)
    except BaseException:
        delete_files(table.io, [facts.path for facts in made])
        raise
    if not replace_files(table, old, made, read_at):
        raise Conflict(f"table {'.'.join(table.name())} changed while it was divided anew")
    return len(old)


def _rewritten(table: Table, path: str) -> list[DataFileFacts]:
    where, local = target(table), local_path(path)
    with pq.ParquetFile(local or table.io.new_input(path).open()) as file:
        rows = file.read()
    parts = (rows.slice(at, CHUNK_ROWS) for at in range(0, rows.num_rows, CHUNK_ROWS))
    return FileWriter(where, "divided").save(parts)
