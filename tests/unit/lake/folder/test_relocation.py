"""A lake whose folder was moved or copied is all there (MEASURE: "data folder moved or copied")."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from nexo.lake.catalog import Lake
from nexo.lake.folder import relocation as moved
from nexo.lake.folder.relocation import relocate
from nexo.lake.maintenance.maintain import Care, maintain
from nexo.lake.paths import local_path
from nexo.lake.reading.ranges import file_ranges
from nexo.lake.reading.stored import find
from nexo.lake.settings import LakeSettings
from nexo.lake.tables import StreamId, offsets_of
from tests.unit.lake.conftest import DAY_MS, Filler
from tests.unit.lake.foreign import delete_rows, respell


@pytest.fixture
def filled(filler: Filler) -> Filler:
    """Several days, merged files, deleted entries in manifests, a tag."""
    for n in range(3):
        filler.append([b"%d" % n], at_ms=n * DAY_MS)
    tagged = filler.table.current_snapshot()
    assert tagged is not None
    filler.table.manage_snapshots().create_tag(tagged.snapshot_id, "audit").commit()
    for n in range(3, 6):
        filler.append([b"%d" % n], partition=1)
    maintain(filler.table, Care(min_files=2))
    filler.append([b"6"])
    return filler


def values(lake: Lake, snapshot_id: int | None = None) -> list[bytes]:
    rows = lake.get("log").scan(snapshot_id=snapshot_id).to_arrow()
    return sorted(rows.column("value").to_pylist())


def paths(lake: Lake) -> list[str]:
    return [local_path(part.path) or "" for part in file_ranges(lake.get("log"))]


@pytest.mark.parametrize("take", [shutil.move, shutil.copytree])
def test_everything_is_there_and_it_goes_on(
    filled: Filler, tmp_path: Path, take: Callable[[Path, Path], object]
) -> None:
    old, new = filled.lake.settings.folder, tmp_path / "else where #2, 100 %" / "lake"
    new.parent.mkdir()
    before = filled.table.refresh().metadata
    take(old, new)
    lake = Lake(LakeSettings(new))
    table = lake.get("log")
    assert values(lake) == [b"%d" % n for n in range(7)]
    assert all(Path(path).is_relative_to(new) for path in paths(lake))
    assert [s.snapshot_id for s in table.metadata.snapshots] == [
        s.snapshot_id for s in before.snapshots
    ]
    for snapshot in before.snapshots:
        assert len(values(lake, snapshot.snapshot_id)) == int(
            snapshot.summary.additional_properties["total-records"]  # type: ignore[union-attr]
        )
    assert values(lake, table.refs()["audit"].snapshot_id) == [b"0", b"1", b"2"]
    assert offsets_of(table.properties) == {0: 4, 1: 3}

    Filler(lake).append([b"7"])
    maintain(lake.get("log"), Care(min_files=2, grace_s=0, max_snapshots=1))
    assert values(Lake(LakeSettings(new))) == [b"%d" % n for n in range(8)]


def test_a_copy_leaves_the_original_alone(filled: Filler, tmp_path: Path) -> None:
    old, new = filled.lake.settings.folder, tmp_path / "copy"
    shutil.copytree(old, new)
    there = {path: path.read_bytes() for path in old.rglob("*") if path.is_file()}
    copy = Lake(LakeSettings(new))
    Filler(copy).append([b"only here"])
    maintain(copy.get("log"), Care(min_files=2, grace_s=0, max_snapshots=1))
    assert {path: path.read_bytes() for path in old.rglob("*") if path.is_file()} == there
    assert len(values(copy)) == 8
    assert len(values(Lake(LakeSettings(old)))) == 7


def test_it_may_be_moved_again_and_back(filled: Filler, tmp_path: Path) -> None:
    old, new = filled.lake.settings.folder, tmp_path / "new"
    for source, to in ((old, new), (new, old)):
        shutil.move(source, to)
        assert len(values(Lake(LakeSettings(to)))) == 7
        assert relocate(to) == 0


def test_a_crash_while_settling_leaves_it_to_be_done(
    filled: Filler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    new = tmp_path / "new"
    shutil.move(filled.lake.settings.folder, new)

    def crash(locations: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(moved, "sync_local", crash)
        with pytest.raises(KeyboardInterrupt):
            relocate(new)
    assert relocate(new) == 1
    assert len(values(Lake(LakeSettings(new)))) == 7


def test_of_many_that_open_it_at_once_one_settles_it(filled: Filler, tmp_path: Path) -> None:
    new = tmp_path / "new"
    shutil.move(filled.lake.settings.folder, new)
    with ThreadPoolExecutor(4) as threads:
        relocated = list(threads.map(lambda _: relocate(new), range(4)))
    assert sorted(relocated) == [0, 0, 0, 1]
    assert len(values(Lake(LakeSettings(new)))) == 7


def test_another_name_for_the_same_folder_is_no_move(filled: Filler, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(filled.lake.settings.folder)
    assert relocate(link) == 0
    assert len(values(Lake(LakeSettings(link)))) == 7


def test_tables_that_are_elsewhere_are_left_alone(filled: Filler, tmp_path: Path) -> None:
    folder = filled.lake.settings.folder
    with closing(sqlite3.connect(folder / "catalog.db", isolation_level=None)) as catalog:
        catalog.execute(
            "insert into iceberg_tables (catalog_name, table_namespace, table_name,"
            " metadata_location) values ('nexo', 'other', 't', 's3://lake/warehouse/t/m.json')"
        )
    assert relocate(folder) == 0


@pytest.mark.parametrize("take", [shutil.move, shutil.copytree])
@pytest.mark.parametrize("deleted", [False, True], ids=["", "with deleted rows"])
def test_a_lake_that_another_program_wrote_to_is_moved_and_copied(
    filled: Filler, tmp_path: Path, take: Callable[[Path, Path], object], deleted: bool
) -> None:
    """It spells paths in another way, and its delete files name files by their paths."""
    left = [b"%d" % n for n in range(7)]
    if deleted:
        delete_rows(filled.table, file_ranges(filled.table.refresh())[0].file, [0])
        left = values(filled.lake)
    respell(filled.table)
    filled.append([b"7"])  # in the spelling of Nexo
    old, new = filled.lake.settings.folder, tmp_path / "there" / "lake"
    new.parent.mkdir()
    there = {path: path.read_bytes() for path in old.rglob("*") if path.is_file()}
    take(old, new)
    copy = Lake(LakeSettings(new))
    assert values(copy) == [*left, b"7"]
    assert all(Path(path).is_relative_to(new) for path in paths(copy))
    if deleted:
        assert any(each.deletes for each in file_ranges(copy.get("log")))
        assert find(copy, StreamId("log", 1)).files()  # type: ignore[union-attr]
    Filler(copy).append([b"8"])
    maintain(copy.get("log"), Care(min_files=2, grace_s=0, max_snapshots=1))
    assert values(Lake(LakeSettings(new))) == [*left, b"7", b"8"]
    if old.exists():
        assert {path: path.read_bytes() for path in old.rglob("*") if path.is_file()} == there
        assert values(Lake(LakeSettings(old))) == [*left, b"7"]
