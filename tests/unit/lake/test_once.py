"""A change of a table counts once, whoever repeats it, and only of what it was made from (I4)."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from nexo.errors import Conflict, InvalidInput
from nexo.lake.files import DataFileFacts, FileWriter, target
from nexo.lake.maintenance.maintain import Care, maintain
from nexo.lake.once import BATCHES, IDLE_MS, commit_once, last_batches
from nexo.lake.paths import local_path
from nexo.lake.reading.ranges import file_ranges
from nexo.lake.rows import rows
from nexo.lake.settings import LakeSettings
from nexo.lake.snapshot import FilesGone, TableChange
from nexo.lake.tables import offsets_of, read_point

from .conftest import Filler, make_batch
from .misbehaving import FAULTS, MisbehavingLake

EAGER = Care(min_files=2, max_manifests=1, max_snapshots=1, grace_s=0)


@pytest.fixture
def lake(tmp_path: Path) -> MisbehavingLake:
    return MisbehavingLake(LakeSettings(tmp_path / "lake"))


@pytest.fixture
def filler(lake: MisbehavingLake) -> Filler:
    found = Filler(lake)
    found.append([b"0"])
    return found


def written(filler: Filler, *values: bytes) -> list[DataFileFacts]:
    writer = FileWriter(target(filler.table), "rows")
    writer.write([rows(make_batch(10, values), 0, 10, 10 + len(values))])
    return writer.close()


def added(filler: Filler, *values: bytes) -> TableChange:
    return TableChange(added=written(filler, *values))


def values(filler: Filler) -> list[bytes]:
    found: list[bytes] = filler.table.refresh().scan().to_arrow().column("value").to_pylist()
    return sorted(found)


def files(filler: Filler) -> set[str]:
    folder = local_path(filler.table.location())
    assert folder is not None
    return {str(path) for path in Path(folder).rglob("*.parquet")}


def named(filler: Filler) -> set[str]:
    return {local_path(part.path) or "" for part in file_ranges(filler.table.refresh())}


def test_a_batch_that_is_repeated_in_another_order_counts_once(filler: Filler) -> None:
    table, is_new = commit_once(filler.table, "query", 0, added(filler, b"a", b"b"))
    assert is_new
    assert last_batches(table.properties) == {"query": 0}
    _, is_new = commit_once(filler.lake.get("log"), "query", 0, added(filler, b"b", b"a"))
    assert not is_new
    assert values(filler) == [b"0", b"a", b"b"]
    assert files(filler) == named(filler)


def test_the_table_knows_its_batches_when_all_their_snapshots_have_expired(filler: Filler) -> None:
    commit_once(filler.table, "query", 3, added(filler, b"a"))
    filler.append([b"1"])
    maintain(filler.table, EAGER)
    _, is_new = commit_once(filler.table, "query", 2, added(filler, b"late"))
    assert not is_new
    assert commit_once(filler.table, "query", 4, added(filler, b"b"))[1]
    assert values(filler) == [b"0", b"1", b"a", b"b"]


def test_writers_do_not_disturb_one_another_and_the_stream_goes_on(filler: Filler) -> None:
    assert commit_once(filler.table, "one", 7, added(filler, b"a"))[1]
    filler.append([b"1"])
    assert commit_once(filler.table, "two", 0, added(filler, b"b"))[1]
    filler.append([b"2"])
    assert last_batches(filler.table.properties) == {"one": 7, "two": 0}
    assert offsets_of(filler.table.properties) == {0: 3}
    snapshot = filler.table.current_snapshot()
    assert snapshot is not None
    assert snapshot.summary is not None
    assert json.loads(snapshot.summary["nexo.offsets"] or "") == {"0": 3}
    assert values(filler) == [b"0", b"1", b"2", b"a", b"b"]


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
@pytest.mark.parametrize("after", [True, False], ids=["after success", "before"])
def test_a_batch_of_unknown_outcome_counts_once(
    filler: Filler, lake: MisbehavingLake, fault: Callable[[], Exception], after: bool
) -> None:
    lake.misbehaving.plan = [(fault, after)]
    assert commit_once(filler.table, "query", 0, added(filler, b"a"))[1]
    assert values(filler) == [b"0", b"a"]
    assert files(filler) == named(filler)


def test_a_writer_that_is_idle_for_a_month_is_forgotten(
    filler: Filler, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit_once(filler.table, "old", 1, TableChange())
    real = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: real() + IDLE_MS * 1_000_000)
    table, _ = commit_once(filler.table, "young", 1, TableChange())
    assert last_batches(table.properties) == {"young": 1}


def test_rows_are_replaced_only_while_they_are_what_was_read(filler: Filler) -> None:
    table = filler.table.refresh()
    old, read_at = frozenset(part.path for part in file_ranges(table)), read_point(table)
    change = TableChange(added=written(filler, b"merged"), removed=old, read_at=read_at)
    assert commit_once(table, "upserts", 0, change)[1]
    again = TableChange(added=written(filler, b"late"), removed=old, read_at=read_at)
    with pytest.raises(FilesGone):
        commit_once(table, "upserts", 1, again)
    assert last_batches(table.refresh().properties) == {"upserts": 0}
    assert values(filler) == [b"merged"]
    assert files(filler) >= named(filler)
    assert not set(map(local_path, (facts.path for facts in again.added))) & files(filler)


def test_what_was_made_of_all_rows_is_refused_once_there_are_more(filler: Filler) -> None:
    read_at = read_point(filler.table.refresh())
    change = TableChange(added=written(filler, b"sum"), read_at=read_at, of_all_rows=True)
    filler.append([b"1"])
    with pytest.raises(FilesGone, match="added"):
        commit_once(filler.table, "view", 0, change)
    read_at = read_point(filler.table.refresh())
    change = TableChange(added=written(filler, b"sum"), read_at=read_at, of_all_rows=True)
    maintain(filler.table, Care(min_files=100, max_manifests=1, max_snapshots=1))
    assert commit_once(filler.table, "view", 0, change)[1]
    assert values(filler) == [b"0", b"1", b"sum"]


@pytest.mark.parametrize(("writer", "number"), [("", 0), ("query", -1)])
def test_a_writer_has_a_name_and_counts_upwards(filler: Filler, writer: str, number: int) -> None:
    with pytest.raises(InvalidInput):
        commit_once(filler.table, writer, number, TableChange())


@pytest.mark.parametrize("text", ["no json", "[]", '{"query": 1}', '{"query": ["a", 1]}'])
def test_a_property_that_others_broke_is_refused_and_nothing_changes(
    filler: Filler, text: str
) -> None:
    with filler.table.transaction() as change:
        change.set_properties({BATCHES: text})
    with pytest.raises(Conflict, match=r"nexo\.queries"):
        commit_once(filler.table, "query", 0, added(filler, b"a"))
    assert values(filler) == [b"0"]
    assert files(filler) == named(filler)
