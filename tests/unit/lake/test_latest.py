"""The table of newest records holds what a compacted topic means."""

from __future__ import annotations

import random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nexo.lake.catalog import Lake
from nexo.lake.derived import latest
from nexo.lake.derived.latest import finish, plan, run
from nexo.lake.maintenance.maintain import Care, maintain
from nexo.lake.reading.ranges import file_ranges
from nexo.lake.tables import NEWEST, StreamId

from .conftest import Filler

STREAM = StreamId("log", 1)


def compact(lake: Lake) -> int:
    table, steps = plan(lake, STREAM)
    if steps:
        finish(table, steps, [run(step) for step in steps])
    return len(steps)


def state(lake: Lake) -> list[tuple[int, bytes | None, bytes]]:
    rows = lake.get("log", NEWEST).scan().to_arrow().to_pylist()
    return sorted((row["offset"], row["key"], row["value"]) for row in rows)


def test_the_newest_record_of_each_key_stays_at_its_offset(lake: Lake, filler: Filler) -> None:
    filler.append([b"1", b"2", b"3", b"4"], keys=[b"a", b"b", None, b"a"])
    assert compact(lake) == 1
    assert state(lake) == [(1, b"b", b"2"), (2, None, b"3"), (3, b"a", b"4")]
    filler.append([None, b"5", b"6"], keys=[b"a", b"c", None])
    assert compact(lake) == 1
    assert state(lake) == [(1, b"b", b"2"), (2, None, b"3"), (5, b"c", b"5"), (6, None, b"6")]
    assert compact(lake) == 0


@pytest.mark.parametrize("fold_rows", [1, 120, latest.FOLD_ROWS])
def test_steps_give_the_same_as_one_pass(
    lake: Lake, filler: Filler, fold_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(latest, "FOLD_ROWS", fold_rows)
    chance = random.Random(7)
    expected: dict[bytes, tuple[int, bytes]] = {}
    offset = 0
    for _ in range(6):
        keys = [b"%d" % chance.randrange(40) for _ in range(50)]
        values = [None if chance.random() < 0.2 else b"%d" % n for n in range(50)]
        filler.append(values, keys=keys)
        for key, value in zip(keys, values, strict=True):
            expected.pop(key, None)
            if value is not None:
                expected[key] = offset, value
            offset += 1
        compact(lake)
    assert state(lake) == sorted((o, key, value) for key, (o, value) in expected.items())


def test_files_merged_between_steps_change_nothing(lake: Lake, filler: Filler) -> None:
    filler.append([b"1", b"2", b"3"], keys=[b"a", b"b", None])
    compact(lake)
    for value in (b"4", b"5"):
        filler.append([value], keys=[b"a"])
    maintain(filler.table, Care(min_files=2, grace_s=0))
    assert len(file_ranges(filler.table.refresh())) == 1
    compact(lake)
    assert state(lake) == [(1, b"b", b"2"), (2, None, b"3"), (4, b"a", b"5")]


def test_values_are_read_only_where_a_newest_record_is(
    lake: Lake, filler: Filler, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n in range(5):
        filler.append([b"%d" % n], keys=[b"a"])
    read: list[list[str]] = []
    original = pq.ParquetFile.read_row_group

    def noted(self: pq.ParquetFile, number: int, columns: list[str]) -> pa.Table:
        read.append(columns)
        return original(self, number, columns)

    monkeypatch.setattr(pq.ParquetFile, "read_row_group", noted)
    compact(lake)
    assert sum("value" in columns for columns in read) == 1
    assert len(read) == 6


def test_a_step_taken_twice_changes_nothing(lake: Lake, filler: Filler) -> None:
    filler.append([b"1", b"2"], keys=[b"a", b"a"])
    table, steps = plan(lake, STREAM)
    finish(table, steps, [run(step) for step in steps])
    before = state(lake)
    assert compact(lake) == 0
    assert state(lake) == before
