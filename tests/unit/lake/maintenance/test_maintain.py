"""Maintenance keeps tables small and loses nothing."""

from __future__ import annotations

import threading
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyiceberg.expressions import EqualTo

from nexo.batch import verify
from nexo.errors import Unavailable
from nexo.lake.catalog import Lake
from nexo.lake.files import FileWriter, target
from nexo.lake.maintenance import maintain as maintenance
from nexo.lake.maintenance.maintain import Care, maintain
from nexo.lake.once import WrittenRange, commit
from nexo.lake.own_columns import ROWS
from nexo.lake.paths import local_path
from nexo.lake.reading.ranges import file_ranges
from nexo.lake.reading.replay import LakeReader
from nexo.lake.rows import rows
from nexo.lake.tables import StreamId, offsets_of
from tests.unit.lake.conftest import DAY_MS, Filler, make_batch

EAGER = Care(min_files=2, max_manifests=2, max_snapshots=2, grace_s=0)
NEWEST_ONLY = Care(min_files=2, max_snapshots=1, grace_s=0)


def values(filler: Filler) -> list[bytes]:
    rows = filler.table.refresh().scan().to_arrow().sort_by("offset")
    found: list[bytes] = rows.column("value").to_pylist()
    return found


def files(filler: Filler, kind: str) -> list[Path]:
    folder = local_path(filler.table.location())
    assert folder is not None
    return sorted(Path(folder).rglob(f"*.{kind}"))


def test_small_files_become_one_per_day_and_old_ones_are_deleted(filler: Filler) -> None:
    for n in range(12):
        filler.append([b"%d" % n], at_ms=DAY_MS * (n // 6))
    report = maintain(filler.table, EAGER)
    assert (report.merged_files, report.merged_into) == (12, 2)
    maintain(filler.table, EAGER)
    assert {pq.ParquetFile(path).num_row_groups for path in files(filler, "parquet")} == {1}
    assert values(filler) == [b"%d" % n for n in range(12)]
    assert len(file_ranges(filler.table.refresh())) == len(files(filler, "parquet")) == 2
    assert len(filler.table.metadata.snapshots) <= 2
    assert offsets_of(filler.table.properties) == {0: 12}
    assert len(filler.table.current_snapshot().manifests(filler.table.io)) <= 2  # type: ignore[union-attr]


def test_files_are_kept_for_the_grace_period(filler: Filler) -> None:
    for n in range(4):
        filler.append([b"%d" % n])
    report = maintain(filler.table, Care(min_files=2, max_snapshots=1, grace_s=3600))
    assert report.deleted_files == 0
    assert report.waiting_files > 4
    assert len(files(filler, "parquet")) == 5
    maintain(filler.table, Care(min_files=2, max_snapshots=1, grace_s=0))
    assert len(files(filler, "parquet")) == 1


def test_what_a_tag_names_is_never_removed(filler: Filler) -> None:
    for n in range(3):
        filler.append([b"%d" % n])
    tagged = filler.table.current_snapshot()
    assert tagged is not None
    filler.table.manage_snapshots().create_tag(tagged.snapshot_id, "audit").commit()
    for n in range(3, 6):
        filler.append([b"%d" % n])
    maintain(filler.table, EAGER)
    maintain(filler.table, EAGER)
    kept = filler.table.refresh().scan(snapshot_id=tagged.snapshot_id).to_arrow()
    assert kept.num_rows == 3
    assert len(values(filler)) == 6


def test_files_that_were_never_committed_are_swept(filler: Filler) -> None:
    filler.append([b"x"])
    stray = files(filler, "parquet")[0].with_name("stray.parquet")
    stray.write_bytes(b"left by a killed task")
    assert maintain(filler.table, EAGER).deleted_files == 1
    assert not stray.exists()
    assert values(filler) == [b"x"]


def test_the_table_of_an_earlier_stream_of_the_name_is_kept(filler: Filler) -> None:
    """SPEC I2: a stream deleted and created anew does not cost the history of the first."""
    filler.append([b"old"])
    old = filler.table
    filler.table = filler.lake.ensure(StreamId("log", 2), ROWS)
    filler.append([b"new"])
    assert filler.table.location() != old.location()
    for table in list(filler.lake.tables()):
        maintain(table, EAGER)
    counts = {table.name()[-1]: table.scan().to_arrow().num_rows for table in filler.lake.tables()}
    assert counts == {"log": 1, "log_until_1": 1}


def test_a_table_renamed_by_hand_keeps_its_files(filler: Filler) -> None:
    filler.append([b"old"])
    renamed = filler.lake.catalog.rename_table(filler.table.name(), ("nexo", "mine"))
    filler.table = filler.lake.ensure(StreamId("log", 1), ROWS)
    filler.append([b"new"])
    assert filler.table.location() == renamed.location()
    half = Path(local_path(renamed.location()) or "") / "metadata" / "9-x.metadata.json"
    half.write_text('{"format')
    for table in list(filler.lake.tables()):
        maintain(table, EAGER)
    assert filler.lake.catalog.load_table(("nexo", "mine")).scan().to_arrow().num_rows == 1
    assert values(filler) == [b"new"]
    assert not half.exists()


def test_an_append_in_the_middle_of_a_merge_is_kept(
    filler: Filler, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n in range(4):
        filler.append([b"%d" % n])
    table = filler.lake.get("log")
    original = maintenance.rewritten

    def rewritten(*args: object) -> object:
        found = original(*args)  # type: ignore[arg-type]
        filler.append([b"meanwhile"])
        return found

    monkeypatch.setattr(maintenance, "rewritten", rewritten)
    maintain(table, EAGER)
    assert values(filler) == [b"0", b"1", b"2", b"3", b"meanwhile"]


def test_of_two_merges_of_the_same_files_one_is_dropped(
    filler: Filler, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n in range(4):
        filler.append([b"%d" % n])
    original = maintenance.rewritten

    def rewritten(*args: object) -> object:
        found = original(*args)  # type: ignore[arg-type]
        monkeypatch.setattr(maintenance, "rewritten", original)
        assert maintain(filler.lake.get("log"), Care(min_files=2)).merged_files == 4
        return found

    monkeypatch.setattr(maintenance, "rewritten", rewritten)
    assert maintain(filler.lake.get("log"), NEWEST_ONLY).merged_files == 0
    assert values(filler) == [b"0", b"1", b"2", b"3"]
    assert len(files(filler, "parquet")) == 1


def test_large_files_are_left_alone(filler: Filler) -> None:
    for n in range(4):
        filler.append([b"%d" % n])
    report = maintain(filler.table, Care(small_bytes=1, min_files=2))
    assert report.merged_files == 0


def test_a_reader_that_has_planned_keeps_its_files_for_the_grace(filler: Filler) -> None:
    for n in range(4):
        filler.append([b"%d" % n])
    planned = [local_path(task.file.file_path) for task in filler.table.scan().plan_files()]
    maintain(filler.table, Care(min_files=2, max_snapshots=1))
    maintain(filler.table, Care(min_files=2, max_snapshots=1))
    assert sum(pq.read_metadata(path).num_rows for path in planned) == 4


def test_appends_beside_maintenance_lose_nothing(lake: Lake) -> None:
    filler, failures = Filler(lake), list[BaseException]()
    done = threading.Event()

    def keep_maintaining() -> None:
        other = Lake(lake.settings)
        try:
            while not done.is_set():
                maintain(other.get("log"), Care(min_files=2, max_manifests=2, max_snapshots=2))
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=keep_maintaining)
    thread.start()
    try:
        for n in range(15):
            filler.append([b"%02d" % n])
    finally:
        done.set()
        thread.join()
    assert failures == []
    maintain(filler.table, NEWEST_ONLY)
    assert values(filler) == [b"%02d" % n for n in range(15)]
    assert offsets_of(filler.table.refresh().properties) == {0: 15}
    named = {local_path(part.path) for part in file_ranges(filler.table)}
    assert named == {str(path) for path in files(filler, "parquet")}


def test_a_file_swept_before_its_commit_is_never_named(filler: Filler) -> None:
    filler.append([b"a"])
    writer = FileWriter(target(filler.table), "0-1")
    writer.write([rows(make_batch(1, [b"b"]), 0, 1, 2)])
    written = writer.close()
    maintain(filler.table, EAGER)
    with pytest.raises(Unavailable, match="grace"):
        commit(filler.table, [WrittenRange(0, 1, 2, written)])
    assert values(filler) == [b"a"]
    assert offsets_of(filler.table.refresh().properties) == {0: 1}


def erase(filler: Filler, key: bytes) -> None:
    filler.table.refresh().delete(EqualTo("key", key))  # type: ignore[arg-type, call-arg]
    maintain(filler.table, NEWEST_ONLY)


def on_disk(filler: Filler) -> set[bytes]:
    """Every value in any file of the table's folder, named or not."""
    return {
        value.as_py()
        for path in files(filler, "parquet")
        for value in pq.read_table(path).column("value")
    }


def test_what_is_erased_is_gone_from_disk_and_the_rest_goes_on(filler: Filler) -> None:
    filler.append([b"secret", b"other"], keys=[b"a", b"b"])
    filler.append([b"secret too"], keys=[b"a"])
    erase(filler, b"a")
    assert on_disk(filler) == {b"other"}
    reply = LakeReader(filler.lake, "log").read(0, 0, 1)
    assert [r.offset for entry in reply.entries for r in verify(entry).records()] == [1]
    filler.append([b"later"], keys=[b"b"])
    assert values(filler) == [b"other", b"later"]
    assert offsets_of(filler.table.properties) == {0: 4}


def test_a_tag_holds_what_is_erased_until_it_goes(filler: Filler) -> None:
    filler.append([b"secret", b"other"], keys=[b"a", b"b"])
    held = filler.table.current_snapshot()
    assert held is not None
    filler.table.manage_snapshots().create_tag(held.snapshot_id, "hold").commit()
    erase(filler, b"a")
    assert values(filler) == [b"other"]
    assert filler.table.scan(snapshot_id=held.snapshot_id).to_arrow().num_rows == 2
    filler.table.refresh().manage_snapshots().remove_tag("hold").commit()
    maintain(filler.table, NEWEST_ONLY)
    assert on_disk(filler) == {b"other"}
