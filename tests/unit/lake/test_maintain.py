"""Maintenance keeps tables small and loses nothing."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from nexo.lake import maintain as maintenance
from nexo.lake.commit import offsets_of
from nexo.lake.maintain import Care, maintain
from nexo.lake.paths import local_path
from nexo.lake.read import spans

from .conftest import DAY_MS, Filler

EAGER = Care(min_files=2, max_manifests=2, max_snapshots=2, grace_s=0)


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
    assert len(spans(filler.table.refresh())) == len(files(filler, "parquet")) == 2
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


def test_an_append_in_the_middle_of_a_merge_is_kept(
    filler: Filler, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n in range(4):
        filler.append([b"%d" % n])
    table = filler.lake.get("log")
    original = maintenance._rewritten

    def rewritten(*args: object) -> object:
        found = original(*args)  # type: ignore[arg-type]
        filler.append([b"meanwhile"])
        return found

    monkeypatch.setattr(maintenance, "_rewritten", rewritten)
    maintain(table, EAGER)
    assert values(filler) == [b"0", b"1", b"2", b"3", b"meanwhile"]


def test_large_files_are_left_alone(filler: Filler) -> None:
    for n in range(4):
        filler.append([b"%d" % n])
    report = maintain(filler.table, Care(small_bytes=1, min_files=2))
    assert report.merged_files == 0
