"""A catalog that misbehaves costs neither files nor records, and nothing is taken twice (P2)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from nexo.errors import Unavailable
from nexo.lake.commit import CommitUnknown
from nexo.lake.files import DataFileFacts, FileWriter, target
from nexo.lake.maintenance.maintain import Care, maintain
from nexo.lake.once import WrittenRange, commit
from nexo.lake.paths import local_path
from nexo.lake.reading.ranges import file_ranges
from nexo.lake.rows import rows
from nexo.lake.settings import LakeSettings
from nexo.lake.tables import offsets_of

from .conftest import Filler, make_batch
from .misbehaving import FAULTS, MisbehavingCatalog, MisbehavingLake, conflict

MERGE = Care(min_files=2, grace_s=0)
Fault = Callable[[], Exception]


@pytest.fixture
def filler(tmp_path: Path) -> Filler:
    return Filler(MisbehavingLake(LakeSettings(tmp_path / "lake")))


@pytest.fixture
def catalog(filler: Filler) -> MisbehavingCatalog:
    assert isinstance(filler.lake, MisbehavingLake)
    return filler.lake.misbehaving


def values(filler: Filler) -> list[bytes]:
    rows_ = filler.table.refresh().scan().to_arrow().sort_by("offset")
    found: list[bytes] = rows_.column("value").to_pylist()
    return found


def on_disk(filler: Filler) -> set[str]:
    folder = local_path(filler.table.location())
    assert folder is not None
    return {str(path) for path in Path(folder).rglob("*.parquet")}


def named(filler: Filler) -> set[str]:
    return {local_path(part.path) or "" for part in file_ranges(filler.table.refresh())}


def written(filler: Filler, base: int, values: list[bytes]) -> list[DataFileFacts]:
    writer = FileWriter(target(filler.table), f"0-{base}")
    writer.write([rows(make_batch(base, values), 0, base, base + len(values))])
    return writer.close()


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
@pytest.mark.parametrize("after", [True, False], ids=["after success", "before"])
def test_a_merge_of_unknown_outcome_deletes_no_file_that_a_table_names(
    filler: Filler, catalog: MisbehavingCatalog, fault: Fault, after: bool
) -> None:
    for n in range(4):
        filler.append([b"%d" % n])
    catalog.plan = [(fault, after)]
    maintain(filler.table, Care(min_files=2, grace_s=3600))
    assert values(filler) == [b"0", b"1", b"2", b"3"]
    assert len(named(filler)) == 1
    maintain(filler.table, Care(min_files=2, max_snapshots=1, grace_s=0))
    assert on_disk(filler) == named(filler)
    assert values(filler) == [b"0", b"1", b"2", b"3"]


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
@pytest.mark.parametrize("after", [True, False], ids=["after success", "before"])
def test_an_append_of_unknown_outcome_happens_once(
    filler: Filler, catalog: MisbehavingCatalog, fault: Fault, after: bool
) -> None:
    filler.append([b"0"])
    catalog.plan = [(fault, after)]
    filler.append([b"1"])
    assert values(filler) == [b"0", b"1"]
    assert offsets_of(filler.table.properties) == {0: 2}
    assert on_disk(filler) == named(filler)


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_an_append_whose_outcome_stays_unknown_keeps_its_files(
    filler: Filler, catalog: MisbehavingCatalog, fault: Fault
) -> None:
    filler.append([b"0"])
    files = written(filler, 1, [b"1"])
    catalog.plan = [(fault, True)]

    def down() -> Exception:
        catalog.loads = [down]
        return fault()

    def once_committed() -> Exception:
        catalog.loads = [down]
        return fault()

    catalog.plan = [(once_committed, True)]
    with pytest.raises(CommitUnknown):
        commit(filler.table, [WrittenRange(0, 1, 2, files)])
    catalog.loads = []
    assert values(filler) == [b"0", b"1"]
    assert {local_path(facts.path) for facts in files} <= on_disk(filler)


def test_a_catalog_that_is_gone_for_good_is_unavailable_and_nothing_is_deleted(
    filler: Filler, catalog: MisbehavingCatalog
) -> None:
    filler.append([b"0"])
    files = written(filler, 1, [b"1"])
    catalog.plan = [(FAULTS["503"], False)] * 100
    with pytest.raises(Unavailable):
        commit(filler.table, [WrittenRange(0, 1, 2, files)])
    catalog.plan = []
    commit(filler.table, [WrittenRange(0, 1, 2, files)])
    assert values(filler) == [b"0", b"1"]


def test_conflicts_are_tried_again(filler: Filler, catalog: MisbehavingCatalog) -> None:
    filler.append([b"0"])
    catalog.plan = [(conflict, False)] * 3
    filler.append([b"1"])
    catalog.plan = [(conflict, False)] * 3
    maintain(filler.table, MERGE)
    assert values(filler) == [b"0", b"1"]
    assert len(named(filler)) == 1


def test_expiry_of_unknown_outcome_is_no_failure(
    filler: Filler, catalog: MisbehavingCatalog
) -> None:
    for n in range(4):
        filler.append([b"%d" % n])
    catalog.plan = [(FAULTS["500"], True)]
    report = maintain(filler.table, Care(min_files=99, max_snapshots=1, grace_s=0))
    assert report.expired_snapshots == 3
    assert len(filler.table.refresh().metadata.snapshots) == 1
    assert values(filler) == [b"0", b"1", b"2", b"3"]
