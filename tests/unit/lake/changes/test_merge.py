"""Tables that changes are merged into, whatever fails on the way (SPEC P4, I4)."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyiceberg.io.pyarrow import _pyarrow_to_schema_without_ids
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import assign_fresh_schema_ids
from pyiceberg.transforms import BucketTransform

from nexo.errors import Conflict, InvalidInput
from nexo.lake.catalog import Lake
from nexo.lake.changes import buckets
from nexo.lake.changes import merge as merging
from nexo.lake.changes.events import DELETED, SEQUENCE, event_schema
from nexo.lake.changes.keyed import ensure_keyed, find_keyed
from nexo.lake.changes.merge import BucketMerge, KeyedTable, MergedBucket, merge_bucket
from nexo.lake.changes.scd import END_AT, START_AT
from nexo.lake.changes.terms import KeyTerms
from nexo.lake.maintenance.maintain import Care, maintain
from nexo.lake.paths import local_path
from nexo.lake.settings import LakeSettings
from nexo.lake.user_tables import ensure_user_table
from tests.unit.lake.changes.model import (
    COLUMNS,
    COMPOSED,
    PLAIN,
    TRACKED,
    Change,
    arrivals,
    as_events,
    as_sequence,
    feed,
    newest_model,
    versions_model,
)  # fmt: skip

if TYPE_CHECKING:
    from pyiceberg.table import Table


class Lost(Exception):
    """The process that merged is gone."""


def make(lake: Lake, name: str, columns: pa.Schema) -> Table:
    lake.catalog.create_namespace_if_not_exists(lake.settings.namespace)
    spec = PartitionSpec(PartitionField(1, 1000, BucketTransform(4), "id_bucket"))
    return lake.catalog.create_table(
        (lake.settings.namespace, name),
        assign_fresh_schema_ids(_pyarrow_to_schema_without_ids(columns)),
        partition_spec=spec,
    )


class Kept:
    """The three tables, and what they show."""

    def __init__(self, folder: Path, kind: int, sequence: pa.DataType) -> None:
        lake = Lake(LakeSettings(folder))
        added = [pa.field(SEQUENCE, sequence)]
        if kind == 2:
            added = [pa.field(START_AT, sequence), pa.field(END_AT, sequence)]
        events = event_schema(COLUMNS, sequence)
        self.sequence = sequence
        self.tables = KeyedTable(
            make(lake, "t", pa.schema([*COLUMNS, *added])),
            make(lake, "t__state", events),
            make(lake, "t__changes", events),
            KeyTerms(("id", "region"), kind == 2, TRACKED),
        )
        self.batches = 0

    def append(self, changes: Sequence[Change]) -> bool:
        events = as_events([each for each in changes if each.key is not None], self.sequence)
        removed = [
            {SEQUENCE: as_sequence(each.sequence), "__DELETED": True, "__SEEN_MS": 1}
            for each in changes
            if each.key is None
        ]
        events = pa.concat_tables([events, pa.Table.from_pylist(removed, events.schema)])
        return merging.append_changes(self.tables, events, "flow", self.batches)

    def rows(self) -> list[tuple[Any, ...]]:
        found = self.tables.rows.refresh().scan().to_arrow().to_pylist()
        shown = (
            tuple(tuple(each.values()) if isinstance(each, dict) else each for each in row.values())
            for row in found
        )
        return sorted(shown, key=repr)

    def orphans(self) -> set[str]:
        """Files that no table names."""
        found, named = set[str](), set[str]()
        for table in (self.tables.rows, self.tables.state, self.tables.changes):
            folder = local_path(table.location())
            assert folder is not None
            found |= {str(path) for path in Path(folder).rglob("*.parquet")}
            for snapshot in table.refresh().metadata.snapshots:
                for manifest in snapshot.manifests(table.io):
                    entries = manifest.fetch_manifest_entry(table.io, discard_deleted=True)
                    named |= {str(local_path(each.data_file.file_path)) for each in entries}
        return found - named


@pytest.mark.parametrize("kind", [1, 2])
@pytest.mark.parametrize("seed", range(4))
def test_tables_show_what_the_model_shows_though_merges_are_cut_off(
    seed: int, kind: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(f"merge {seed}")
    composed = seed % 2 == 0
    kept = Kept(tmp_path, kind, COMPOSED if composed else PLAIN)
    model = newest_model if kind == 1 else versions_model
    replace, left = merging._replace, [0]

    def failing(table: Table, change: Any) -> None:
        if not left[0]:
            raise Lost
        left[0] -= 1
        replace(table, change)

    monkeypatch.setattr(merging, "_replace", failing)
    came: list[Change] = []
    for batch in arrivals(rng, feed(rng, composed) + feed(rng, composed)):
        assert kept.append(batch)
        assert not kept.append(batch)
        kept.batches += 1
        came += batch
        for left[0] in (0, 1, 2, 3, 9):
            if rng.random() < 0.5:
                continue
            try:
                merging.merge(kept.tables)
            except Lost:
                continue
            assert kept.rows() == sorted(model(came), key=repr)
    left[0] = 9
    merging.merge(kept.tables)
    assert kept.rows() == sorted(model(came), key=repr)
    assert merging.merge(kept.tables).changes == 0


A, B = (1, "a"), (2, "b")
THING = {"price": None, "name": "x", "note": "p"}


@pytest.fixture
def kept(tmp_path: Path) -> Kept:
    return Kept(tmp_path, 1, PLAIN)


def test_only_buckets_with_changes_are_written_again(kept: Kept) -> None:
    kept.append([Change((number, "a"), 1, THING) for number in range(100)])
    assert merging.merge(kept.tables).buckets == 4
    kept.batches += 1
    kept.append([Change((5, "a"), 2, THING)])
    report = merging.merge(kept.tables)
    assert (report.buckets, report.changes) == (1, 1)
    assert 10 < report.rows < 50
    assert len(kept.rows()) == 100


def test_a_merge_that_another_was_faster_than_is_planned_again(kept: Kept) -> None:
    kept.append([Change(A, 1, THING)])
    merging.merge(kept.tables)
    kept.batches += 1
    kept.append([Change(A, 2, THING), Change(B, 1, THING)])
    rows, state, changes = (
        each.catalog.load_table(each.name())
        for each in (kept.tables.rows, kept.tables.state, kept.tables.changes)
    )
    other = KeyedTable(rows, state, changes, kept.tables.terms)
    first = [True]

    def late(tasks: Sequence[BucketMerge]) -> Iterator[MergedBucket]:
        found = [merge_bucket(each) for each in tasks]
        if first.pop() if first else False:
            merging.merge(other)
        return iter(found)

    merging.merge(kept.tables, late)
    assert [row[-1] for row in kept.rows()] == [2, 1]
    assert not kept.orphans()


def test_a_task_that_fails_leaves_the_tables_as_they_are(kept: Kept) -> None:
    kept.append([Change(A, 1, THING)])

    def failing(tasks: Sequence[BucketMerge]) -> Iterator[MergedBucket]:
        raise Lost

    with pytest.raises(Lost):
        merging.merge(kept.tables, failing)
    assert kept.rows() == []
    merging.merge(kept.tables)
    assert len(kept.rows()) == 1


def test_rows_that_others_marked_as_deleted_are_refused(
    kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept.append([Change(A, 1, THING)])
    monkeypatch.setattr(merging, "DATA", 7)
    with pytest.raises(Conflict, match="marked rows"):
        merging.merge(kept.tables)


@pytest.mark.parametrize("point", ["replace_files", "settle", "divide"])
def test_a_table_that_has_grown_has_more_buckets(
    kept: Kept, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    keys = range(200)
    kept.append([Change((number, "a"), 1, THING) for number in keys])
    merging.merge(kept.tables)
    kept.batches += 1
    monkeypatch.setattr(buckets, "MOST_BYTES", 100)
    monkeypatch.setattr(buckets, "USUAL_BYTES", 500)
    kept.append([Change((3, "a"), 2, None), Change((500, "a"), 2, THING)])

    def failing(*given: Any) -> bool:
        raise Lost

    with monkeypatch.context() as patch:
        patch.setattr(buckets, point, failing)
        with pytest.raises(Lost):
            merging.merge(kept.tables)
    merging.merge(kept.tables)
    all_three = kept.tables.rows, kept.tables.state, kept.tables.changes
    (count,) = {buckets.buckets_of(each.refresh()) for each in all_three}
    assert count > 4
    assert [row[0] for row in sorted(kept.rows())] == sorted({*keys, 500} - {3})
    used = {each["spec_id"] for each in kept.tables.rows.inspect.files().to_pylist()}
    assert used == {kept.tables.rows.spec().spec_id}


def test_maintenance_removes_what_merges_have_replaced(tmp_path: Path) -> None:
    lake = Lake(LakeSettings(tmp_path))
    columns = pa.schema([("id", pa.int64()), ("name", pa.string())])
    terms = KeyTerms(("id",))
    events = event_schema(columns, PLAIN)
    for number in range(14):
        tables = ensure_keyed(lake, "people", columns, PLAIN, terms, buckets=2)
        made = [{"id": n, "name": f"{number}", SEQUENCE: number, DELETED: False} for n in range(9)]
        merging.append_changes(tables, pa.Table.from_pylist(made, events), "flow", number)
        merging.merge(tables)
    assert len(tables.rows.metadata.snapshots) <= 11
    for table in (tables.rows, tables.state, tables.changes):
        maintain(table, Care(max_snapshots=1, grace_s=0))
        maintain(table, Care(max_snapshots=1, grace_s=0))
    found = find_keyed(lake, "people")
    assert found is not None
    assert found.rows.scan().to_arrow().column("name").to_pylist() == ["13"] * 9
    assert len(list(Path(local_path(found.rows.location()) or "").rglob("*.parquet"))) == 2
    with pytest.raises(Conflict, match="with all versions"):
        ensure_keyed(lake, "people", columns, PLAIN, KeyTerms(("id",), history=True))
    with pytest.raises(InvalidInput, match="no column 'ID'"):
        ensure_keyed(lake, "others", columns, PLAIN, KeyTerms(("ID",)))
    ensure_user_table(lake, "visits__state", columns)
    with pytest.raises(Conflict, match="in the way"):
        ensure_keyed(lake, "visits", columns, PLAIN, terms)


def test_a_removal_of_all_rows_that_was_cut_off_reaches_every_bucket(
    kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept.append([Change((number, "a"), 1, THING) for number in range(20)])
    merging.merge(kept.tables)
    kept.batches += 1
    kept.append([Change(None, 5, None)])
    replace = merging._replace

    def failing(table: Table, change: Any) -> None:
        if table is kept.tables.rows:
            raise Lost
        replace(table, change)

    with monkeypatch.context() as patch:
        patch.setattr(merging, "_replace", failing)
        with pytest.raises(Lost):
            merging.merge(kept.tables)
    merging.merge(kept.tables)
    assert kept.rows() == []
    kept.batches += 1
    kept.append([Change(A, 4, THING), Change(B, 6, THING)])
    merging.merge(kept.tables)
    assert [row[0] for row in kept.rows()] == [2]
