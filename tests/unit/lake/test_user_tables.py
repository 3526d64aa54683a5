"""Tables that users' code fills: made, widened, replaced, read as streams."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import pyarrow as pa
import pytest

from nexo.errors import Conflict, InvalidInput, NotFound
from nexo.lake.catalog import Lake
from nexo.lake.files import DataFileFacts, FileWriter, target
from nexo.lake.once import commit_anyway, commit_once
from nexo.lake.own_columns import ROWS
from nexo.lake.reading.growing import added_between, newest_position
from nexo.lake.settings import LakeSettings
from nexo.lake.snapshot import TableChange
from nexo.lake.tables import StreamId
from nexo.lake.user_tables import (
    TableShape,
    ensure_user_table,
    find_user_table,
    get_user_table,
    user_tables,
)
from nexo.lake.writing.modes import all_files, files_where

pytest.importorskip("pyiceberg")

COLUMNS = pa.schema([pa.field("id", pa.int64()), pa.field("day", pa.date32())])


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(LakeSettings(tmp_path / "lake"))


def files(lake: Lake, name: str, ids: list[int], day: int = 1) -> list[DataFileFacts]:
    rows = pa.table({"id": ids, "day": [date(2026, 11, day)] * len(ids)}, schema=COLUMNS)
    return FileWriter(target(get_user_table(lake, name)), "w-test").save([rows])


def ids(lake: Lake, name: str) -> list[int]:
    return sorted(get_user_table(lake, name).scan().to_arrow().column("id").to_pylist())


def append(lake: Lake, name: str, values: list[int], day: int = 1) -> None:
    found = files(lake, name, values, day)
    commit_anyway(get_user_table(lake, name), TableChange(added=found))


@pytest.mark.parametrize("name", ["clean", "gold.x", "Groß-und `klein`", "a/b", "1"])
def test_a_table_may_have_any_name(lake: Lake, name: str) -> None:
    assert find_user_table(lake, name) is None
    ensure_user_table(lake, name, COLUMNS)
    append(lake, name, [1, 2])
    assert ids(lake, name) == [1, 2]
    assert [table.properties["nexo.table"] for table in user_tables(lake)] == [name]
    assert list(lake.tables()) == []


def test_tables_of_users_and_of_streams_keep_out_of_each_others_way(lake: Lake) -> None:
    lake.ensure(StreamId("orders", 1), ROWS)
    with pytest.raises(Conflict, match="of stream 'orders': give the table"):
        ensure_user_table(lake, "orders", COLUMNS)
    ensure_user_table(lake, "clean", COLUMNS)
    stream = lake.ensure(StreamId("clean", 1), ROWS)
    assert stream.name()[-1] != "clean"
    assert lake.get("clean").name() == stream.name()
    with pytest.raises(NotFound):
        get_user_table(lake, "orders")


def test_columns_are_added_and_widened_and_nothing_else_is_changed(lake: Lake) -> None:
    ensure_user_table(lake, "t", pa.schema([("id", pa.int32()), ("n", pa.float32())]))
    wider = pa.schema([("id", pa.int64()), ("n", pa.float64()), ("more", pa.string())])
    table = ensure_user_table(lake, "t", wider)
    assert [str(field.field_type) for field in table.schema().fields] == [
        "long",
        "double",
        "string",
    ]
    same = ensure_user_table(lake, "t", pa.schema([("id", pa.int32())]))
    assert same.metadata_location == table.metadata_location
    with pytest.raises(Conflict, match="column 'id' of table 't' is int64, and now string"):
        ensure_user_table(lake, "t", pa.schema([("id", pa.string())]))


def test_partitions_are_columns_or_iceberg_s_transforms(lake: Lake) -> None:
    columns = pa.schema([*COLUMNS, pa.field("at", pa.timestamp("us", "UTC"))])
    shape = TableShape(["day", "hours(at)", "bucket(4, id)"])
    table = ensure_user_table(lake, "t", columns, shape)
    found = [(field.name, str(field.transform)) for field in table.spec().fields]
    assert found == [("day", "identity"), ("at_hour", "hour"), ("id_bucket", "bucket[4]")]
    for wrong in ("nothing", "months(nothing)", "zorder(id)", "a b c("):
        with pytest.raises(InvalidInput, match="partition"):
            ensure_user_table(lake, "u", columns, TableShape([wrong]))


def test_parts_of_a_column_may_be_null_later(lake: Lake) -> None:
    inner = pa.struct([pa.field("a", pa.int64(), nullable=False)])
    ensure_user_table(lake, "t", pa.schema([pa.field("s", inner, nullable=False)]))
    rows = pa.table(
        {"s": [{"a": None}, None]}, schema=pa.schema([("s", pa.struct([("a", "int64")]))])
    )
    found = FileWriter(target(get_user_table(lake, "t")), "w").save([rows])
    commit_anyway(get_user_table(lake, "t"), TableChange(added=found))
    assert get_user_table(lake, "t").scan().to_arrow().num_rows == 2


def test_all_rows_or_one_partition_s_are_replaced(lake: Lake) -> None:
    ensure_user_table(lake, "t", COLUMNS, TableShape(["day"]))
    append(lake, "t", [1, 2], day=1)
    append(lake, "t", [3], day=2)
    one_day = files_where({"day": (date(2026, 11, 2) - date(1970, 1, 1)).days})
    change = TableChange(added=files(lake, "t", [4, 5], day=2))
    assert commit_once(get_user_table(lake, "t"), "view", 0, change, one_day)[1]
    assert ids(lake, "t") == [1, 2, 4, 5]
    change = TableChange(added=files(lake, "t", [9]))
    assert commit_once(get_user_table(lake, "t"), "view", 1, change, all_files)[1]
    assert ids(lake, "t") == [9]
    again = TableChange(added=files(lake, "t", [10]))
    assert not commit_once(get_user_table(lake, "t"), "view", 1, again, all_files)[1]
    assert ids(lake, "t") == [9]
    with pytest.raises(InvalidInput, match="not divided by 'id'"):
        commit_once(get_user_table(lake, "t"), "view", 2, TableChange(), files_where({"id": 1}))


def test_what_was_added_while_a_replacement_was_written_is_replaced_too(lake: Lake) -> None:
    ensure_user_table(lake, "t", COLUMNS)
    seen = get_user_table(lake, "t")
    change = TableChange(added=files(lake, "t", [9]))
    append(lake, "t", [1])
    commit_once(seen, "view", 0, change, all_files)
    assert ids(lake, "t") == [9]


@pytest.fixture
def grown(lake: Lake) -> Lake:
    ensure_user_table(lake, "t", COLUMNS)
    append(lake, "t", [1])
    append(lake, "t", [2])
    append(lake, "t", [3])
    return lake


def test_a_table_is_read_as_a_stream_by_its_commits(grown: Lake) -> None:
    table = get_user_table(grown, "t")
    end = newest_position(table)
    assert len(added_between(table, 0, end)) == 3
    assert len(added_between(table, end - 1, end)) == 1
    assert added_between(table, end, end) == []
    for n in range(150):  # manifests are merged, snapshots expire
        append(grown, "t", [n])
    table = get_user_table(grown, "t")
    assert len(added_between(table, end, newest_position(table))) == 150
    assert len(added_between(table, 0, newest_position(table))) == 153


def test_a_reader_of_rows_that_were_replaced_is_told(grown: Lake) -> None:
    table = get_user_table(grown, "t")
    end = newest_position(table)
    commit_once(table, "view", 0, TableChange(added=files(grown, "t", [7])), all_files)
    for n in range(120):  # the snapshot that replaced them has expired
        append(grown, "t", [n])
    table = get_user_table(grown, "t")
    with pytest.raises(Conflict, match="were replaced"):
        added_between(table, end, newest_position(table))
    assert len(added_between(table, end + 1, newest_position(table))) == 120
    assert len(added_between(table, 0, newest_position(table))) == 121
