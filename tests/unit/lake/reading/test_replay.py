"""The lake gives back what was put into it, in order, as entries of the log."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.table import DataScan, FileScanTask

from nexo.batch import BatchRecord, verify
from nexo.errors import Conflict, NotFound
from nexo.lake.catalog import Lake
from nexo.lake.maintenance.maintain import Care, maintain
from nexo.lake.reading.replay import LakeReader

from ..conftest import DAY_MS, Filler


def records(reader: LakeReader, partition: int, offset: int, end: int) -> list[BatchRecord]:
    found: list[BatchRecord] = []
    while offset < end:
        reply = reader.read(partition, offset, 1)
        batch = [r for entry in reply.entries for r in verify(entry).records()]
        found += [record for record in batch if record.offset >= offset]
        assert reply.next_offset > offset
        offset = reply.next_offset
    return found


def test_every_record_comes_back_once_and_in_order(lake: Lake, filler: Filler) -> None:  # SPEC I3
    for n in range(5):
        filler.append([b"%d" % (10 * n + i) for i in range(10)], at_ms=DAY_MS * n)
    reader = LakeReader(lake, "log")
    found = records(reader, 0, 0, 50)
    assert [record.offset for record in found] == list(range(50))
    assert [record.value for record in found] == [b"%d" % n for n in range(50)]
    assert [record.timestamp_ms for record in found] == [DAY_MS * (n // 10) for n in range(50)]
    assert {record.headers for record in found} == {b'{"n":1}'}
    assert {record.value_type for record in found} == {1}
    assert [r.offset for r in records(reader, 0, 37, 50)] == list(range(37, 50))


def test_little_is_sent_when_little_is_asked_for(
    lake: Lake, filler: Filler, monkeypatch: pytest.MonkeyPatch
) -> None:
    filler.append([b"%05d" % n for n in range(5_000)])
    filler.append([b"%05d" % n for n in range(5_000, 5_010)], skip=3)
    reader = LakeReader(lake, "log")
    first = reader.read(0, 2_345, 1)
    assert [r.offset for r in verify(first.entries[0]).records()] == list(range(2_345, 3_345))
    decoded: list[int] = []
    original = pq.ParquetFile.read_row_group

    def counted(self: pq.ParquetFile, number: int, columns: list[str]) -> pa.Table:
        decoded.append(number)
        return original(self, number, columns)

    monkeypatch.setattr(pq.ParquetFile, "read_row_group", counted)
    found = records(reader, 0, first.next_offset, 5_013)
    assert [r.offset for r in found] == [*range(3_345, 5_000), *range(5_003, 5_013)]
    assert [r.value for r in found] == [b"%05d" % n for n in range(3_345, 5_010)]
    assert len(decoded) == 1  # the second file's: the first's was kept


def test_nulls_and_keys_survive(lake: Lake, filler: Filler) -> None:
    filler.append([None, b"", b"x"], keys=[b"k", None, b""])
    found = records(LakeReader(lake, "log"), 0, 0, 3)
    assert [(record.key, record.value) for record in found] == [
        (b"k", None), (None, b""), (b"", b"x"),
    ]  # fmt: skip


def test_gaps_are_stepped_over(lake: Lake, filler: Filler) -> None:
    filler.append([b"a"] * 3)
    filler.append([b"b"] * 2, skip=4)
    reader = LakeReader(lake, "log")
    assert [record.offset for record in records(reader, 0, 0, 9)] == [0, 1, 2, 7, 8]
    assert [record.offset for record in records(reader, 0, 5, 9)] == [7, 8]


def test_a_reader_sees_what_was_appended_and_merged_since(lake: Lake, filler: Filler) -> None:
    reader = LakeReader(lake, "log")
    filler.append([b"a"])
    assert len(records(reader, 0, 0, 1)) == 1
    assert reader.read(0, 1, 100).entries == []
    for _ in range(9):
        filler.append([b"b"])
    maintain(filler.table, Care(min_files=2, grace_s=0, max_snapshots=1))
    assert [record.offset for record in records(reader, 0, 0, 10)] == list(range(10))


def test_a_reader_of_long_standing_gives_no_rows_that_were_deleted_since(
    lake: Lake, filler: Filler, monkeypatch: pytest.MonkeyPatch
) -> None:  # SPEC I3
    """Nor does what it read ahead; rows that were only added or moved cost no new plan."""
    reader = LakeReader(lake, "log")
    filler.append([b"%d" % n for n in range(6)])
    assert len(records(reader, 0, 0, 6)) == 6
    filler.append([b"later"])
    maintain(filler.table, Care(min_files=2))
    with monkeypatch.context() as patched:
        patched.delattr(DataScan, "plan_files")
        assert [each.offset for each in records(reader, 0, 1, 6)] == list(range(1, 6))
    filler.table.refresh().delete("offset = 3")
    assert [each.offset for each in records(reader, 0, 2, 7)] == [2, 4, 5, 6]


def test_partitions_are_apart(lake: Lake, filler: Filler) -> None:
    filler.append([b"zero"] * 3)
    filler.append([b"one"] * 2, partition=1)
    assert [r.value for r in records(LakeReader(lake, "log"), 1, 0, 2)] == [b"one"] * 2


def test_a_stream_without_a_table_is_named(lake: Lake) -> None:
    with pytest.raises(NotFound, match="nowhere"):
        LakeReader(lake, "nowhere").read(0, 0, 1)


def test_rows_that_another_program_marked_as_deleted_do_not_come_back(
    lake: Lake, filler: Filler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Deletions that are not understood are refused: erased stays erased."""
    for n in range(4):
        filler.append([b"%d" % n])
    plan = DataScan.plan_files

    def marked(scan: DataScan) -> list[FileScanTask]:
        first, *others = plan(scan)
        return [FileScanTask(first.file, {others[0].file}), *others]

    monkeypatch.setattr(DataScan, "plan_files", marked)
    with pytest.raises(Conflict, match=r"nexo\.log are marked as deleted"):
        LakeReader(lake, "log").read(0, 0, 1)
    with pytest.raises(Conflict, match="marked as deleted"):
        maintain(filler.table, Care(min_files=2, grace_s=0))
