"""The table of newest records holds what a compacted topic means."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nexo.batch.partitions import Growths, partition_of
from nexo.lake.catalog import Lake
from nexo.lake.derived import latest
from nexo.lake.derived.latest import finish, plan, run
from nexo.lake.maintenance.maintain import Care, maintain
from nexo.lake.reading.ranges import file_ranges
from nexo.lake.tables import NEWEST, StreamId, held_offsets
from tests.unit.lake.conftest import Filler

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


# -- partitions that were added (SPEC E1) ------------------------------------------------

KEYS = [b"k%d" % n for n in range(30)]


def grown(lake: Lake, growths: Growths, starts: Sequence[int] = ()) -> None:
    table, steps = plan(lake, STREAM, growths, starts)
    if steps:
        finish(table, steps, [run(step) for step in steps])


def newest(lake: Lake) -> dict[bytes, bytes]:
    rows = lake.get("log", NEWEST).scan().to_arrow().to_pylist()
    found = {row["key"]: row["value"] for row in rows}
    assert len(found) == len(rows)  # each key once
    return found


def put(filler: Filler, count: int, values: dict[bytes, bytes | None], at_ms: int) -> None:
    """Append records where keys belong among so many partitions."""
    for partition in range(count):
        keys = [key for key in values if partition_of(key, count) == partition]
        if keys:
            rows = [values[key] for key in keys]
            filler.append(rows, keys=keys, partition=partition, at_ms=at_ms)


@pytest.mark.parametrize("later_ms", [2_000, 500])  # whatever the clocks of the writers say
@pytest.mark.parametrize("at_once", [True, False])
def test_a_key_that_moved_has_its_newest_record_alone(
    lake: Lake, filler: Filler, later_ms: int, at_once: bool
) -> None:
    put(filler, 2, dict.fromkeys(KEYS, b"old"), 1_000)
    ends = held_offsets(filler.table)
    growths = Growths([[ends[0], ends[1]]])
    if not at_once:
        grown(lake, growths)
        assert newest(lake) == dict.fromkeys(KEYS, b"old")
    new = dict.fromkeys(KEYS[:10], b"new") | dict.fromkeys(KEYS[10:15])
    put(filler, 5, new, later_ms)
    expected = dict.fromkeys(KEYS[:10], b"new") | dict.fromkeys(KEYS[15:], b"old")
    grown(lake, growths)
    assert newest(lake) == expected
    assert not plan(lake, STREAM, growths)[1]
    put(filler, 5, {KEYS[20]: b"newer"}, later_ms + 1)
    grown(lake, growths)
    assert newest(lake) == expected | {KEYS[20]: b"newer"}


def test_later_records_wait_until_the_lake_has_all_earlier_ones(lake: Lake, filler: Filler) -> None:
    """Otherwise a deletion would be forgotten before the record that it deletes arrives."""
    gone = next(key for key in KEYS if partition_of(key, 5) not in (0, partition_of(key, 1)))
    growths = Growths([[2]])
    filler.append([None], keys=[gone], partition=partition_of(gone, 5), at_ms=2_000)
    grown(lake, growths)
    filler.append([b"old", b"x"], keys=[gone, None], at_ms=1_000)
    grown(lake, growths)
    assert newest(lake) == {None: b"x"}


def test_records_that_the_broker_no_longer_has_are_not_waited_for(
    lake: Lake, filler: Filler
) -> None:
    key = next(key for key in KEYS if partition_of(key, 5) != 0)
    filler.append([b"new"], keys=[key], partition=partition_of(key, 5))
    grown(lake, Growths([[2]]), [2, 0, 0, 0, 0])
    assert newest(lake) == {key: b"new"}


def test_only_partitions_that_share_keys_are_rewritten(lake: Lake, filler: Filler) -> None:
    put(filler, 4, dict.fromkeys(KEYS, b"old"), 1_000)
    ends = held_offsets(filler.table)
    growths = Growths([[ends.get(number, 0) for number in range(4)]])
    grown(lake, growths)
    filler.append([b"new"], keys=[KEYS[0]], partition=partition_of(KEYS[0], 8), at_ms=2_000)
    _, steps = plan(lake, STREAM, growths)
    home = partition_of(KEYS[0], 4)
    assert {step.partition % 4 for step in steps} == {home}
