"""Tables committed together: one transaction, and each table's outcome is its own (SPEC I4, I8)."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from pyiceberg.table import Table

from nexo.lake.commit import LostRace, commit_all
from nexo.lake.files import FileWriter, target
from nexo.lake.maintenance.maintain import Care, maintain
from nexo.lake.once import TableCommit, WrittenRange, taking
from nexo.lake.paths import local_path
from nexo.lake.reading.ranges import file_ranges
from nexo.lake.rows import rows
from nexo.lake.settings import CATALOG, LakeSettings
from tests.unit.lake.conftest import Filler, make_batch
from tests.unit.lake.misbehaving import FAULTS, MisbehavingLake, conflict

NAMES = ("a", "b", "c")


@pytest.fixture
def lake(tmp_path: Path) -> MisbehavingLake:
    return MisbehavingLake(LakeSettings(tmp_path / "lake"))


@pytest.fixture
def fillers(lake: MisbehavingLake) -> list[Filler]:
    """Three tables of one record each."""
    found = [Filler(lake, name) for name in NAMES]
    for each in found:
        each.append([b"0"])
    return found


def next_record(filler: Filler) -> TableCommit:
    """The next record, written and not yet committed."""
    writer = FileWriter(target(filler.table), "0-1")
    writer.write([rows(make_batch(1, [b"1"]), 0, 1, 2)])
    return taking(filler.table, [WrittenRange(0, 1, 2, writer.close())])


def values(filler: Filler) -> list[bytes]:
    found = filler.table.refresh().scan().to_arrow().sort_by("offset")
    listed: list[bytes] = found.column("value").to_pylist()
    return listed


def no_orphans(filler: Filler) -> bool:
    maintain(filler.table, Care(max_snapshots=1, grace_s=0))
    folder = local_path(filler.table.location())
    assert folder is not None
    left = {str(path) for path in Path(folder).rglob("*.parquet")}
    return left == {local_path(part.path) for part in file_ranges(filler.table.refresh())}


def test_tables_of_a_folder_share_a_transaction(
    lake: MisbehavingLake, fillers: list[Filler]
) -> None:
    with closing(sqlite3.connect(lake.settings.folder / CATALOG)) as catalog:
        before = catalog.execute("pragma data_version").fetchone()
        outcomes = commit_all([next_record(each) for each in fillers])
        catalog.execute("select count(*) from iceberg_tables").fetchone()
        after = catalog.execute("pragma data_version").fetchone()
    assert after[0] == before[0] + 1
    assert all(isinstance(outcome, Table) for outcome in outcomes)
    assert [values(each) for each in fillers] == [[b"0", b"1"]] * 3


def test_a_table_that_another_was_first_at_stops_no_other(fillers: list[Filler]) -> None:
    work = [next_record(each) for each in fillers]
    Filler(fillers[1].lake, "b").append([b"other"])
    outcomes = commit_all(work)
    assert [type(outcome) for outcome in outcomes] == [Table, LostRace, Table]
    assert [values(each)[1] for each in fillers] == [b"1", b"other", b"1"]
    assert all(map(no_orphans, fillers))


def test_a_table_that_was_only_merged_meanwhile_is_committed(fillers: list[Filler]) -> None:
    fillers[0].append([b"x"])
    work = [next_record(each) for each in fillers[1:]]
    maintain(Filler(fillers[1].lake, "b").table, Care(max_snapshots=1, grace_s=3_600))
    assert all(isinstance(outcome, Table) for outcome in commit_all(work))
    assert [values(each) for each in fillers] == [[b"0", b"x"], [b"0", b"1"], [b"0", b"1"]]


@pytest.mark.parametrize("fault", [conflict, *FAULTS.values()], ids=["conflict", *FAULTS])
@pytest.mark.parametrize("after", [True, False], ids=["after success", "before"])
def test_a_transaction_of_unknown_outcome_happens_once(
    lake: MisbehavingLake, fillers: list[Filler], fault: Callable[[], Exception], after: bool
) -> None:
    work = [next_record(each) for each in fillers]
    lake.misbehaving.plan = [(fault, after and fault is not conflict)]
    outcomes = commit_all(work)
    assert all(isinstance(outcome, Table) for outcome in outcomes), outcomes
    assert [values(each) for each in fillers] == [[b"0", b"1"]] * 3
    assert all(map(no_orphans, fillers))


def test_nothing_to_commit_is_no_work() -> None:
    assert commit_all([]) == []
