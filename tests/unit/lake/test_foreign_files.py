"""Files of other programs: read by their rows, and brought into order (SPEC I3, I5, I8)."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.transforms import BucketTransform

from nexo.batch.view import BatchRecord
from nexo.errors import Conflict
from nexo.lake.catalog import Lake
from nexo.lake.derived import dead_letters, latest
from nexo.lake.derived.redrive import redrive
from nexo.lake.files import FileWriter, target
from nexo.lake.maintenance.backfill import backfill
from nexo.lake.maintenance.maintain import Care, maintain
from nexo.lake.names import file_label
from nexo.lake.once import commit_once
from nexo.lake.own_columns import ROWS
from nexo.lake.reading import ordered
from nexo.lake.reading.ordered import row_groups
from nexo.lake.reading.ranges import file_ranges
from nexo.lake.reading.replay import LakeReader
from nexo.lake.reading.stored import find
from nexo.lake.snapshot import TableChange
from nexo.lake.tables import DEAD_LETTERS, NEWEST, StreamId
from nexo.lake.typed import columns as typed

from .conftest import Filler
from .foreign import append, delete_rows, rewrite
from .reading.test_replay import records

LOG = StreamId("log", 1)
PARTITIONS, COUNT = 3, 40
EAGER = Care(min_files=2, grace_s=0)


@pytest.fixture
def chance() -> random.Random:
    return random.Random(11)


@pytest.fixture
def filled(filler: Filler) -> Filler:
    for partition in range(PARTITIONS):
        for start in range(0, COUNT, 10):
            names = [b"%d:%d" % (partition, start + n) for n in range(10)]
            filler.append(names, partition=partition, keys=[n[-1:] for n in names])
    return filler


def replayed(lake: Lake, end: int = COUNT) -> dict[int, list[tuple[int, bytes | None]]]:
    reader = LakeReader(lake, "log")
    return {
        partition: [
            (each.offset, each.value)
            for each in records(reader, partition, 0, end)
            if each.offset < end
        ]
        for partition in range(PARTITIONS)
    }


def written(without: Callable[[int, int], bool] = lambda *_: False) -> dict[int, Any]:
    return {
        partition: [
            (n, b"%d:%d" % (partition, n)) for n in range(COUNT) if not without(partition, n)
        ]
        for partition in range(PARTITIONS)
    }


def stored_values(lake: Lake) -> list[bytes]:
    """The values that SQL sees, read from the files that it is given."""
    table, found = lake.get("log"), find(lake, LOG)
    assert found is not None
    wanted = pa.schema([ROWS.field("value")])
    return sorted(
        value
        for file in found.files()
        for rows in row_groups(table.io, file.path, wanted, file.deletes)
        for value in rows.column("value").to_pylist()
    )


def everything() -> list[bytes]:
    return sorted(value for rows in written().values() for _, value in rows)


@pytest.mark.parametrize("metrics", [True, False], ids=["bounds", "no bounds"])
def test_replay_gives_each_partition_its_own_records_in_order(
    lake: Lake, filled: Filler, chance: random.Random, metrics: bool
) -> None:
    rewrite(filled.table, chance, metrics=metrics)
    assert replayed(lake) == written()
    reader = LakeReader(lake, "log")
    assert [each.offset for each in records(reader, 1, 17, COUNT)] == list(range(17, COUNT))
    assert stored_values(lake) == everything()


def test_later_records_follow_a_foreign_file(
    lake: Lake, filled: Filler, chance: random.Random
) -> None:
    rewrite(filled.table, chance)
    filled.append([b"new"], partition=1)
    reader = LakeReader(lake, "log")
    found = records(reader, 1, 30, COUNT + 1)
    assert [each.offset for each in found] == list(range(30, COUNT + 1))
    assert found[-1].value == b"new"


@pytest.mark.parametrize("metrics", [True, False], ids=["bounds", "no bounds"])
def test_maintenance_brings_files_into_order_and_loses_nothing(
    lake: Lake, filled: Filler, chance: random.Random, metrics: bool
) -> None:
    rewrite(filled.table, chance, metrics=metrics)
    assert not any(each.is_ordered for each in file_ranges(filled.table.refresh()))
    assert maintain(filled.table, EAGER).merged_files
    files = file_ranges(filled.table.refresh())
    assert all(each.is_ordered for each in files)
    assert [(each.partition, each.first, each.last) for each in files] == [
        (partition, 0, COUNT - 1) for partition in range(PARTITIONS)
    ]
    assert replayed(lake) == written()
    assert stored_values(lake) == everything()
    assert not maintain(filled.table, EAGER).merged_files


@pytest.mark.parametrize("maintained", [False, True], ids=["as written", "maintained"])
@pytest.mark.parametrize("metrics", [True, False], ids=["bounds", "no bounds"])
def test_rows_without_a_place_are_kept_and_stop_nothing(
    lake: Lake, filled: Filler, metrics: bool, maintained: bool
) -> None:
    """An ``INSERT`` without an offset, one without a partition, and a second row of an offset."""
    others: list[dict[str, Any]] = [
        {"value": b"no place"},
        {"value": b"no offset", "partition": 1},
        {"value": b"no partition", "offset": 3},
        {"value": b"negative", "partition": 1, "offset": -1},
        {"value": b"a second 0:3", "partition": 0, "offset": 3},
    ]
    append(filled.table, others, metrics=metrics)
    if maintained:
        maintain(filled.table, EAGER)
        assert not maintain(filled.table, EAGER).merged_files
    assert replayed(lake) == written()
    assert stored_values(lake) == sorted([*everything(), *(row["value"] for row in others)])
    filled.append([b"later"])
    assert [each.value for each in records(LakeReader(lake, "log"), 0, COUNT, COUNT + 1)] == [
        b"later"
    ]


def test_nulls_and_unknown_types_of_others_are_replayed_as_what_they_can_be(
    lake: Lake, filler: Filler
) -> None:
    filler.append([b"0"])
    row = {"partition": 0, "offset": 0, "value": b"changed", "value_type": 99}
    rewrite(filler.table, random.Random(1), keep=lambda _: False)
    append(filler.table, [row])
    (found,) = records(LakeReader(lake, "log"), 0, 0, 1)
    assert (found.value, found.value_type, found.timestamp_ms) == (b"changed", 0, 0)


def deleted_some(filled: Filler) -> Callable[[int, int], bool]:
    """Mark the fourth row of each file as deleted, and say which those are."""
    for each in file_ranges(filled.table.refresh()):
        delete_rows(filled.table, each.file, [3])
    return lambda _, n: n % 10 == 3


def test_deleted_rows_are_gone_from_replay_sql_and_newest_records(
    lake: Lake, filled: Filler
) -> None:
    gone = deleted_some(filled)
    left = written(gone)
    assert replayed(lake) == left
    assert stored_values(lake) == sorted(value for rows in left.values() for _, value in rows)
    table, steps = latest.plan(lake, LOG)
    latest.finish(table, steps, [latest.run(step) for step in steps])
    newest = lake.get("log", NEWEST).scan().to_arrow()
    assert newest.num_rows == 9 * PARTITIONS  # of ten keys, one was deleted everywhere


def test_maintenance_applies_deletes_and_goes_on(lake: Lake, filled: Filler) -> None:
    gone = deleted_some(filled)
    for care in (Care(min_files=1_000, grace_s=0), EAGER):  # not only where files are merged
        maintain(filled.table, care)
        assert not any(each.deletes for each in file_ranges(filled.table.refresh()))
        assert replayed(lake) == written(gone)
    filled.append([b"0:40"])
    assert filled.table.scan().to_arrow().num_rows == (COUNT - 4) * PARTITIONS + 1
    maintain(filled.table, EAGER)
    assert replayed(lake) == written(gone)


def test_delete_files_whose_data_files_are_gone_block_nothing(
    lake: Lake, filled: Filler, chance: random.Random
) -> None:
    gone = deleted_some(filled)
    rewrite(filled.table, chance)
    assert replayed(lake) == written(gone)
    maintain(filled.table, EAGER)
    left = written(gone)
    assert replayed(lake) == left
    assert stored_values(lake) == sorted(value for rows in left.values() for _, value in rows)


def test_newest_records_are_right_whoever_rewrote_either_table(
    lake: Lake, filled: Filler, chance: random.Random
) -> None:
    def compact() -> list[tuple[int, int]]:
        table, steps = latest.plan(lake, LOG)
        latest.finish(table, steps, [latest.run(step) for step in steps])
        rows = lake.get("log", NEWEST).scan().to_arrow().to_pylist()
        return sorted((row["partition"], row["offset"]) for row in rows)

    rewrite(filled.table, chance)
    newest = [(partition, n) for partition in range(PARTITIONS) for n in range(30, COUNT)]
    assert compact() == newest
    rewrite(lake.get("log", NEWEST), chance)
    filled.append([b"1:40"], partition=1, keys=[b"5"])
    newest.remove((1, 35))
    assert compact() == sorted([*newest, (1, 40)])


def test_dead_letters_are_collected_and_sent_from_foreign_files(
    lake: Lake, filler: Filler, chance: random.Random
) -> None:
    typed.set_schema(filler.table, {"id": "long"})
    for partition in range(2):
        filler.append([b'{"id": 1}', b"bad", b'{"id": 2}', b"worse"], partition=partition)
    rewrite(filler.table, chance)
    while planned := dead_letters.plan(lake, LOG):
        table, steps = planned
        dead_letters.finish(table, steps, [dead_letters.run(step) for step in steps])
    assert dead_letters.count(lake, LOG) == {0: 2, 1: 2}
    rewrite(lake.get("log", DEAD_LETTERS), chance)
    assert dead_letters.count(lake, LOG) == {0: 2, 1: 2}
    found = dead_letters.newest(lake.get("log", DEAD_LETTERS), 1)
    assert [each.offset for each in found] == [3]
    sent: list[Any] = []
    assert redrive(lake, LOG, lambda values, *_: sent.extend(values)) == 4
    assert sent == ["bad", "worse"] * 2
    assert redrive(lake, LOG, lambda *_: pytest.fail("sent twice")) == 0


def test_backfill_keeps_foreign_files_columns_and_deleted_rows(
    lake: Lake, filler: Filler, chance: random.Random
) -> None:
    for partition in range(2):
        filler.append([b'{"id": %d}' % n for n in range(10)], partition=partition)
    rewrite(filler.table, chance)
    with filler.table.update_schema() as update:
        update.union_by_name(pa.schema([pa.field("note", pa.string())]))
    append(filler.table, [{"partition": 0, "offset": 10, "value": b'{"id": 10}', "note": "mine"}])
    files = file_ranges(filler.table.refresh())
    marked = max(files, key=lambda each: each.file.record_count)
    delete_rows(filler.table, marked.file, [0])
    typed.set_schema(filler.table, {"id": "long"})
    backfill(filler.table)
    rows = filler.table.refresh().scan().to_arrow().to_pylist()
    assert len(rows) == 20
    assert all(b'{"id": %d}' % row["id"] == row["value"] for row in rows)
    assert [row["note"] for row in rows if row["offset"] == 10] == ["mine"]


def test_a_file_that_says_it_is_in_order_is_not_believed(lake: Lake, filler: Filler) -> None:
    for partition in range(2):
        filler.append([b"%d" % n for n in range(4)], partition=partition)
    rows = filler.table.scan().to_arrow()
    rewrite(filler.table, random.Random(1), keep=lambda _: False)
    mixed = rows.take(pa.array([3, 1, 0, 2], pa.int64()))
    facts = FileWriter(target(filler.table), file_label(0, 0, 4)).save([mixed])
    commit_once(filler.table, "somebody", 1, TableChange(added=facts))
    assert [each.offset for each in records(LakeReader(lake, "log"), 0, 0, 4)] == sorted(
        row["offset"] for row in mixed.to_pylist() if row["partition"] == 0
    )


def test_more_rows_than_are_sorted_at_a_time(
    lake: Lake, filled: Filler, chance: random.Random, monkeypatch: pytest.MonkeyPatch
) -> None:
    rewrite(filled.table, chance)
    monkeypatch.setattr(ordered, "WINDOW_ROWS", 7)
    assert replayed(lake) == written()
    reader = LakeReader(lake, "log")
    found: list[BatchRecord] = records(reader, 2, 23, COUNT)
    assert [each.offset for each in found] == list(range(23, COUNT))


def test_columns_are_known_by_their_ids_whatever_they_are_called(
    lake: Lake, filled: Filler, chance: random.Random
) -> None:
    with filled.table.update_schema() as update:
        update.rename_column("value", "payload")
        update.rename_column("offset", "place")
    filled.append([b"0:40"])
    assert filled.table.scan().to_arrow().column("payload").null_count == 0
    assert all(each.is_ordered for each in file_ranges(filled.table))
    rewrite(filled.table, chance)
    assert [each.value for each in records(LakeReader(lake, "log"), 0, 38, COUNT + 1)] == [
        b"0:38", b"0:39", b"0:40",
    ]  # fmt: skip
    maintain(filled.table, EAGER)
    assert [each.value for each in records(LakeReader(lake, "log"), 0, 38, COUNT + 1)] == [
        b"0:38", b"0:39", b"0:40",
    ]  # fmt: skip


def test_a_table_that_lost_a_column_stops_with_a_way_out(lake: Lake, filled: Filler) -> None:
    with filled.table.update_schema(allow_incompatible_changes=True) as update:
        update.delete_column("value")
    with pytest.raises(Conflict, match=r"no longer has the column 'value' .*rename the table"):
        filled.append([b"lost"])
    assert replayed(lake) == written()


def test_a_table_that_is_no_longer_divided_is_maintained(lake: Lake, filled: Filler) -> None:
    with filled.table.update_spec() as update:
        update.remove_field("day")
    filled.table.refresh()
    filled.append([b"0:40"])
    maintain(filled.table, EAGER)
    assert replayed(lake) == written()
    assert stored_values(lake) == sorted([*everything(), b"0:40"])


def test_a_table_divided_by_a_column_of_another_program_is_read_in_order(
    lake: Lake, filled: Filler
) -> None:
    """Files of one partition overlap then: each has some of its offsets."""
    with filled.table.update_spec() as update:
        update.add_field("key", BucketTransform(4), "part")
    filled.table.refresh()
    for start in (COUNT, COUNT + 5):
        values = [b"0:%d" % (start + n) for n in range(5)]
        filled.append(values, keys=[value[-1:] for value in values])
    for _ in range(2):
        found = records(LakeReader(lake, "log"), 0, 30, COUNT + 10)
        assert [each.value for each in found] == [b"0:%d" % n for n in range(30, COUNT + 10)]
        maintain(filled.table, EAGER)
