"""Small files of users' tables are merged, and whoever reads the tables as streams goes on (P6)."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars
import pyarrow as pa
import pytest

from nexo.errors import Conflict, InvalidInput
from nexo.lake.catalog import Lake
from nexo.lake.files import FileWriter, file_io, target
from nexo.lake.maintenance import maintain as maintenance
from nexo.lake.maintenance.maintain import maintain
from nexo.lake.maintenance.planning import Care, rewrites
from nexo.lake.once import commit_anyway
from nexo.lake.reading.growing import added_between, newest_position, rows_version
from nexo.lake.reading.ranges import file_ranges
from nexo.lake.settings import LakeSettings
from nexo.lake.snapshot import TableChange
from nexo.lake.user_tables import TableShape, ensure_user_table, get_user_table
from tests.unit.lake.foreign import delete_rows

COLUMNS = pa.schema([("n", pa.int64()), ("day", pa.string())])
EAGER = Care(min_files=2, grace_s=0, max_snapshots=1)


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(LakeSettings(tmp_path / "lake"))


def made(lake: Lake, shape: TableShape | None = None) -> Any:
    return ensure_user_table(lake, "t", COLUMNS, shape)


def append(table: Any, *numbers: int, day: str = "mon") -> int:
    """Returns the position of a reader that has read the rows."""
    rows = pa.table({"n": list(numbers), "day": [day] * len(numbers)}, schema=COLUMNS)
    files = FileWriter(target(table.refresh()), "w-1").save([rows])
    commit_anyway(table, TableChange(added=files))
    return newest_position(table.refresh())


def read(table: Any, after: int, until: int) -> list[int]:
    where = target(table.refresh())
    parts = [part for part, _ in added_between(table, after, until)]
    rows = [row for part in parts for row in part.rows(file_io(where), where.schema)]
    return sorted(n for each in rows for n in each.column("n").to_pylist())


def numbers(table: Any) -> list[int]:
    return sorted(table.refresh().scan().to_arrow().column("n").to_pylist())


def count(table: Any) -> int:
    return len(list(table.refresh().scan().plan_files()))


def test_readers_of_the_stream_get_each_row_once_wherever_they_are(lake: Lake) -> None:
    table = made(lake)
    ends = [0, *(append(table, 2 * n, 2 * n + 1) for n in range(6))]
    assert maintain(table, EAGER).merged_files == 6
    assert (count(table), numbers(table)) == (1, list(range(12)))
    last = newest_position(table.refresh())
    for first, after in enumerate(ends):
        assert read(table, after, last) == list(range(2 * first, 12))
        for until in range(first, 7):
            assert read(table, after, ends[until]) == list(range(2 * first, 2 * until))
    append(table, 12)
    append(table, 13)
    assert maintain(table, EAGER).merged_files == 3  # the merged one is small, too
    last = newest_position(table.refresh())
    for first, after in enumerate(ends):
        assert read(table, after, last) == list(range(2 * first, 14))


def test_random_merges_appends_and_readers(lake: Lake) -> None:
    table, chance = made(lake, TableShape(("day",), ("n",))), random.Random(7)
    place, seen, there = 0, list[int](), 0
    for _ in range(60):
        match chance.choice(["append", "append", "merge", "read"]):
            case "append":
                some = [there + n for n in range(chance.randint(1, 4))]
                chance.shuffle(some)
                append(table, *some, day=chance.choice(["mon", "tue"]))
                there += len(some)
            case "merge":
                maintain(table, replace(EAGER, min_files=chance.randint(2, 4)))
            case _:
                until = chance.randint(place, newest_position(table.refresh()))
                seen += read(table, place, until)
                place = until
    seen += read(table, place, newest_position(table.refresh()))
    assert sorted(seen) == numbers(table) == list(range(there))


def test_rows_of_a_merged_file_are_sorted_and_divided_as_the_table_says(lake: Lake) -> None:
    table = made(lake, TableShape(("day",), ("n",)))
    for n in (5, 3, 4):
        append(table, n, 9 - n, day="mon")
        append(table, n + 10, day="tue")
    maintain(table, EAGER)
    files = [task.file for task in table.refresh().scan().plan_files()]
    assert sorted(str(each.partition[0]) for each in files) == ["mon", "tue"]
    rows = table.scan(row_filter="day == 'mon'").to_arrow().column("n").to_pylist()
    assert rows == [3, 4, 4, 5, 5, 6]


def test_other_engines_do_not_see_the_column_of_commits(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POLARS_ICEBERG_PLANNER", "pyiceberg")
    table = made(lake)
    for n in range(3):
        append(table, n)
    maintain(table, EAGER)
    assert table.refresh().scan().to_arrow().column_names == ["n", "day"]
    assert polars.scan_iceberg(table).collect().columns == ["n", "day"]
    found = table.scan().to_duckdb("t").execute("select * from t order by n").fetchall()
    assert found == [(0, "mon"), (1, "mon"), (2, "mon")]


def test_rows_that_another_program_replaces_still_stop_a_reader(lake: Lake) -> None:
    table = made(lake)
    ends = [append(table, n) for n in range(4)]
    maintain(table, replace(EAGER, max_snapshots=None))
    table.refresh().delete("n == 2")
    with pytest.raises(Conflict, match="were replaced"):
        read(table, ends[0], newest_position(table.refresh()))


def test_marked_rows_are_left_out_first(lake: Lake) -> None:
    table = made(lake)
    for n in range(3):
        append(table, n, n + 10)
    delete_rows(table.refresh(), file_ranges(table)[0].file, [0])
    left = numbers(table)
    assert len(left) == 5
    care = Care(min_files=99, grace_s=0)
    assert [maintain(table, care).merged_files for _ in range(2)] == [1, 0]
    assert numbers(table) == left


def test_a_reader_that_begins_skips_rows_that_others_marked_as_deleted(lake: Lake) -> None:
    table = made(lake)
    append(table, 0, 1, 2)
    append(table, 3)
    delete_rows(table.refresh(), file_ranges(table)[0].file, [1])
    left = numbers(table)
    assert len(left) == 3
    assert read(table, 0, newest_position(table.refresh())) == left


def test_an_append_and_a_replacement_in_the_middle_of_a_merge(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = made(lake)
    ends = [append(table, n) for n in range(4)]
    original = maintenance.rewritten

    def rewritten(*given: Any) -> Any:
        found = original(*given)
        append(get_user_table(lake, "t"), 99)
        return found

    monkeypatch.setattr(maintenance, "rewritten", rewritten)
    assert maintain(table, EAGER).merged_files == 4
    assert read(table, ends[2], newest_position(table.refresh())) == [3, 99]
    append(table, 100)

    def replaced(*given: Any) -> Any:
        found = original(*given)
        get_user_table(lake, "t").overwrite(pa.table({"n": [7], "day": ["x"]}, schema=COLUMNS))
        return found

    monkeypatch.setattr(maintenance, "rewritten", replaced)
    assert maintain(table, EAGER).merged_files == 0
    assert numbers(table) == [7]


def test_merging_does_not_make_views_anew(lake: Lake) -> None:
    table = made(lake)
    for n in range(3):
        append(table, n)
    before = rows_version(table.refresh())
    maintain(table, EAGER)
    assert rows_version(table.refresh()) == before
    append(table, 3)
    maintain(table, EAGER)
    assert rows_version(table.refresh()) != before


def test_files_are_as_large_as_the_table_says(lake: Lake) -> None:
    table = made(lake, TableShape(properties={"nexo.file-size": "4 KiB"}))
    for n in range(12):
        append(table, n)
    size = rewrites(table, EAGER).due[0].size_bytes
    assert size < 4096
    assert len(rewrites(table, EAGER).due) > 1
    with table.refresh().transaction() as change:
        change.set_properties({"nexo.file-size": "large"})
    with pytest.raises(InvalidInput, match="file-size"):
        rewrites(table, EAGER)
