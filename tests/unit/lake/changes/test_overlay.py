"""Changes that wait, as SQL shows them, at any moment of a merge (SPEC P4)."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow as pa
import pytest
from pyiceberg.types import StringType

from nexo.lake import files
from nexo.lake.catalog import Lake
from nexo.lake.changes import buckets, waiting
from nexo.lake.changes import merge as merging
from nexo.lake.changes.events import DELETED, SEEN_MS, SEQUENCE, event_schema
from nexo.lake.changes.keyed import ensure_keyed, keyed_at_once
from nexo.lake.changes.reading import KeyedPart, keyed_reading, parts_of
from nexo.lake.changes.terms import KeyTerms
from nexo.lake.manifests import read_list
from nexo.lake.reading.stored import find_together
from nexo.lake.settings import LakeSettings
from nexo.lake.tables import newest_snapshot
from nexo.sql.keyed import KeyedView, beside
from nexo.sql.lake_files import LakeFiles
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


class Kept:
    """A table of rows by key in a lake."""

    def __init__(self, folder: Path, kind: int, sequence: pa.DataType) -> None:
        self.lake, self.sequence, self.batches = Lake(LakeSettings(folder)), sequence, 0
        terms = KeyTerms(("id", "region"), kind == 2, TRACKED)
        self.tables = ensure_keyed(self.lake, "People", COLUMNS, sequence, terms, buckets=4)

    def append(self, changes: Sequence[Change]) -> None:
        events = as_events([each for each in changes if each.key is not None], self.sequence)
        removed = [
            {SEQUENCE: as_sequence(each.sequence), DELETED: True, SEEN_MS: 1}
            for each in changes
            if each.key is None
        ]
        events = pa.concat_tables([events, pa.Table.from_pylist(removed, events.schema)])
        self.batches += 1
        assert merging.append_changes(self.tables, events, "flow", self.batches)

    def shown(self, query: str = "select * from people") -> list[tuple[Any, ...]]:
        found = find_together(self.lake, beside("People"))
        assert found is not None
        with duckdb.connect() as connection:
            connection.execute("set timezone = 'UTC'")
            view = KeyedView(connection, LakeFiles(connection), self.tables.terms, "keyed")
            connection.execute(f"create view people as {view.query(found)}")
            rows = connection.execute(query).fetchall()
        return in_order(rows)

    def parts(self) -> list[KeyedPart]:
        found = keyed_at_once(self.lake, "People")
        assert found is not None
        return parts_of(found)

    def read(self) -> list[tuple[Any, ...]]:
        """As tasks of Spark read it."""
        where = keyed_reading(self.tables)
        tables = [rows for part in self.parts() for rows in where.read(part)]
        return in_order(row.values() for rows in tables for row in rows.to_pylist())


def in_order(rows: Iterable[Iterable[Any]]) -> list[tuple[Any, ...]]:
    plain = (
        tuple(tuple(each.values()) if isinstance(each, dict) else each for each in row)
        for row in rows
    )
    return sorted(plain, key=repr)


@pytest.mark.parametrize("kind", [1, 2])
@pytest.mark.parametrize("seed", range(4))
def test_questions_see_the_newest_state_at_any_moment_of_a_merge(
    seed: int, kind: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(f"sql {seed}")
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
        kept.append(batch)
        came += batch
        expected = sorted(model(came), key=repr)
        assert kept.shown() == expected
        assert kept.read() == expected
        for left[0] in (0, 1, 2, 3, 9):
            if rng.random() < 0.5:
                continue
            with suppress(Lost):
                merging.merge(kept.tables)
            assert kept.shown() == expected
            assert kept.read() == expected


THING = {"price": None, "name": "x", "note": "p"}


def test_a_reader_sees_one_moment_though_tables_are_merged_while_it_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from nexo.lake.reading import stored  # noqa: PLC0415 - what is changed

    kept = Kept(tmp_path, 1, PLAIN)
    kept.append([Change((1, "a"), 1, THING), Change((2, "a"), 5, None)])
    merging.merge(kept.tables)
    find, merged = stored.find_made, list[bool]()

    def late(lake: Lake, name: str) -> Any:
        found = find(lake, name)
        if name == "People" and not merged:  # an older row comes late, and is merged meanwhile
            kept.append([Change((2, "a"), 7, THING)])
            merging.merge(kept.tables)
            kept.append([Change((2, "a"), 3, THING | {"name": "late"})])
            merged.append(True)
        return found

    monkeypatch.setattr(stored, "find_made", late)
    assert [(row[0], row[3], row[-1]) for row in kept.shown()] == [(1, "x", 1), (2, "x", 7)]


def test_only_changed_keys_are_read_twice(tmp_path: Path) -> None:
    kept = Kept(tmp_path, 1, PLAIN)
    kept.append([Change((number, "a"), 1, THING) for number in range(100)])
    merging.merge(kept.tables)
    kept.append([Change((5, "a"), 2, None), Change((6, "a"), 2, THING), Change((6, "b"), 2, THING)])
    assert kept.shown("select count(*), max(__SEQUENCE) from people") == [(100, 2)]
    assert kept.shown("select count(*) from keyed_keys") == [(3,)]
    assert kept.shown("select id, region from people where id < 7 and id > 4") == [
        (6, "a"), (6, "b"),
    ]  # fmt: skip


@pytest.mark.parametrize("point", ["replace_files", "settle", "divide"])
def test_a_table_that_is_being_divided_anew_is_read_as_one(
    point: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = Kept(tmp_path, 1, PLAIN)
    kept.append([Change((number, "a"), 1, THING) for number in range(200)])
    merging.merge(kept.tables)
    kept.append([Change((3, "a"), 2, None), Change((500, "a"), 2, THING)])
    monkeypatch.setattr(buckets, "MOST_BYTES", 100)
    monkeypatch.setattr(buckets, "USUAL_BYTES", 100)

    def failing(*given: Any) -> bool:
        raise Lost

    monkeypatch.setattr(buckets, point, failing)
    for _ in range(2):
        with pytest.raises(Lost):
            merging.merge(kept.tables)
        kept.append([Change((4, "a"), 2, None), Change((501, "a"), 2, THING)])
        expected = sorted({*range(200), 500, 501} - {3, 4})
        assert sorted(row[0] for row in kept.read()) == expected
        assert sorted(row[0] for row in kept.shown()) == expected


def test_changes_wait_until_they_are_worth_it_or_old(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = Kept(tmp_path, 1, PLAIN)
    assert waiting.waiting(kept.tables) == waiting.WaitingChanges()
    kept.append([Change((number, "a"), 1, THING) for number in range(400)])
    first = waiting.waiting(kept.tables)
    assert (first.count, first.rows, first.since_ms, first.is_worth_it) == (400, 0, 1, True)
    merging.merge(kept.tables)
    kept.append([Change((5, "a"), 2, THING)])
    one = waiting.waiting(kept.tables)
    assert (one.count, one.rows, one.is_worth_it) == (1, 400, False)
    assert one.is_old(1_000, 1_001)
    assert not one.is_old(1_000, 1_000)
    kept.append([Change((number, "a"), 2, THING) for number in range(20)])
    assert waiting.waiting(kept.tables).is_worth_it
    merging.merge(kept.tables)
    monkeypatch.setattr(files, "FEW_ROWS", 0)
    kept.append([Change((5, "a"), 3, THING)])
    divided = waiting.waiting(kept.tables)
    assert divided.count == 1
    assert 50 < divided.rows < 200
    kept.append([Change(None, 9, None)])
    assert waiting.waiting(kept.tables).is_worth_it


def test_few_rows_that_are_wide_are_divided_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is not divided is divided by one process, in memory."""
    monkeypatch.setattr(files, "CHUNK_BYTES", 20_000)
    kept = Kept(tmp_path, 1, PLAIN)
    kept.append([Change((number, "a"), 1, THING) for number in range(20)])
    kept.append([Change((number, "a"), 1, THING | {"name": "x" * 1_000}) for number in range(20)])
    few, *wide = merging.keyed_files(kept.tables.changes.refresh())
    assert few.values == ()
    assert wide
    assert () not in {each.values for each in wide}


def test_many_small_batches_that_wait_have_few_manifests(tmp_path: Path) -> None:
    kept = Kept(tmp_path, 1, PLAIN)
    for number in range(40):
        kept.append([Change((number, "a"), 1, THING)])
    snapshot = newest_snapshot(kept.tables.changes.refresh())
    assert snapshot is not None
    assert len(read_list(kept.tables.changes.io, snapshot.manifest_list)) < 20
    assert len(kept.shown()) == 40


def test_questions_are_answered_while_a_column_is_added(tmp_path: Path) -> None:
    kept = Kept(tmp_path, 1, PLAIN)
    kept.append([Change((number, "a"), 1, THING) for number in range(9)])
    merging.merge(kept.tables)
    kept.append([Change((3, "a"), 2, None), Change((4, "a"), 2, THING | {"name": "new"})])
    before = kept.shown("select id, name from people")
    for table in (kept.tables.state, kept.tables.rows):
        with table.refresh().update_schema() as change:
            change.add_column("late", StringType())
        assert kept.shown("select id, name from people") == before


def test_of_changes_without_a_place_the_last_one_to_come_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However each was written: in one file, by buckets, or by those that the table had before."""
    monkeypatch.setattr(files, "FEW_ROWS", 10)
    kept, names, last = Kept(tmp_path, 1, PLAIN), "abcdefghijklmnop", ""
    kept.append([Change((number, "a"), 0, THING) for number in range(200)])
    merging.merge(kept.tables)
    for number, name in enumerate(names):
        keys = range(40) if number % 3 == 0 else range(5)
        kept.append([Change((key, "a"), 0, THING | {"name": name}) for key in keys])
        if number == 7:
            monkeypatch.setattr(buckets, "MOST_BYTES", 100)
            monkeypatch.setattr(buckets, "USUAL_BYTES", 100)
            with monkeypatch.context() as patch:
                patch.setattr(merging, "_commit", lambda *_: None)  # only divided anew
                merging.merge(kept.tables)
        expected = {name} if len(keys) == 40 else {name, last}
        assert {row[3] for row in kept.shown() if row[0] < 40} == expected
        assert {row[3] for row in kept.read() if row[0] < 40} == expected
        last = name if len(keys) == 40 else last
    assert buckets.buckets_of(kept.tables.rows) > 4
    merging.merge(kept.tables)
    assert {row[3] for row in kept.shown() if row[0] < 40} == {"p"}
    assert {row[3] for row in kept.shown() if row[0] >= 40} == {"x"}


EVERY_TYPE = {
    "flag": (pa.bool_(), True),
    "small": (pa.int32(), -7),
    "real": (pa.float32(), 0.5),
    "double": (pa.float64(), 1e300),
    "price": (pa.decimal128(38, 9), Decimal("12345678901234567890123456789.000000001")),
    "day": (pa.date32(), date(1969, 12, 31)),
    "local": (pa.timestamp("us"), datetime(2026, 11, 19, 1, 2, 3, 4)),  # noqa: DTZ001
    "at": (pa.timestamp("us", "UTC"), datetime(2026, 11, 19, 1, 2, 3, 4, UTC)),
    "raw": (pa.binary(), b"\x00\xff"),
    "tags": (pa.list_(pa.string()), ["a", None]),
    "place": (pa.struct([("x", pa.int64()), ("of", pa.list_(pa.int32()))]), {"x": 1, "of": [2]}),
    "counts": (pa.map_(pa.string(), pa.int64()), {"k": 5}),
}


@pytest.mark.parametrize("history", [False, True])
def test_values_of_every_type_are_the_same_before_and_after_a_merge(
    history: bool, tmp_path: Path
) -> None:
    columns = pa.schema([("id", pa.string()), *((n, kind) for n, (kind, _) in EVERY_TYPE.items())])
    terms = KeyTerms(("id",), history, tuple(EVERY_TYPE))
    lake = Lake(LakeSettings(tmp_path))
    tables = ensure_keyed(lake, "kinds", columns, PLAIN, terms, buckets=2)
    given = {name: value for name, (_, value) in EVERY_TYPE.items()}
    for number in range(3):
        made = [{"id": f"k{n}", **(given if n else {}), SEQUENCE: number} for n in range(number, 4)]
        events = [{DELETED: False, SEEN_MS: 1, **each} for each in made]
        table = pa.Table.from_pylist(events, event_schema(columns, PLAIN))
        merging.append_changes(tables, table, "flow", number)
        if number == 0:
            merging.merge(tables)

    def shown() -> list[Any]:
        found = find_together(lake, beside("kinds"))
        assert found is not None
        with duckdb.connect() as connection:
            connection.execute("set timezone = 'UTC'")
            view = KeyedView(connection, LakeFiles(connection), terms, "keyed")
            return connection.execute(
                f"select * from ({view.query(found)}) order by all"
            ).fetchall()

    def read() -> list[Any]:
        keyed = keyed_at_once(lake, "kinds")
        assert keyed is not None
        parts = [keyed_reading(keyed).read(each) for each in parts_of(keyed)]
        rows = [row for part in parts for table in part for row in table.to_pylist()]
        return sorted(rows, key=repr)

    before, seen = shown(), read()
    assert waiting.waiting(tables).count == 5
    merging.merge(tables)
    assert not waiting.waiting(tables).count
    assert shown() == before
    assert read() == seen
    assert seen[-1]["price"] == EVERY_TYPE["price"][1]
