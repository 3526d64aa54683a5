"""A table whose files are gone or damaged stops with a typed error, and stops no other table."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from pyiceberg.table import Table

from nexo.errors import Conflict, Corrupt, Unavailable
from nexo.lake.catalog import Lake
from nexo.lake.maintenance.maintain import Care, maintain
from nexo.lake.paths import local_file
from nexo.lake.reading.ranges import file_ranges
from nexo.lake.reading.replay import LakeReader
from nexo.lake.reading.stored import find
from nexo.lake.settings import LakeSettings
from nexo.lake.tables import OFFSETS, StreamId, held_offsets
from nexo.lake.typed.columns import terms_of

from .conftest import Filler
from .foreign import append

Place = Callable[[Table], str]


def metadata(table: Table) -> str:
    return table.metadata_location


def manifest_list(table: Table) -> str:
    snapshot = table.current_snapshot()
    assert snapshot is not None
    return str(snapshot.manifest_list)


def manifest(table: Table) -> str:
    snapshot = table.current_snapshot()
    assert snapshot is not None
    return str(snapshot.manifests(table.io)[-1].manifest_path)


def data(table: Table) -> str:
    return file_ranges(table)[1].path


@pytest.fixture
def others(lake: Lake) -> Filler:
    found = Filler(lake, "other")
    found.append([b"0"])
    return found


@pytest.mark.parametrize("place", [metadata, manifest_list, manifest, data])
@pytest.mark.parametrize("kept", [None, 0, 60])
def test_a_file_that_is_gone_or_cut_is_named_by_every_way_to_read(
    lake: Lake, filler: Filler, others: Filler, place: Place, kept: int | None
) -> None:
    for value in (b"0", b"1"):
        filler.append([value])
    append(filler.table, [{"value": b"somebody's"}])
    path = local_file(place(filler.table.refresh()))
    content = path.read_bytes()
    path.unlink()
    if kept is not None:
        path.write_bytes(content[:kept])
    fresh = Lake(LakeSettings(lake.settings.folder))
    wanted = Unavailable if kept is None else Corrupt
    with pytest.raises(wanted):
        LakeReader(fresh, "log").read(0, 0, 1 << 20)
    with pytest.raises(wanted):
        maintain(fresh.get("log"), Care(min_files=2))
    if place is not data:
        with pytest.raises((wanted, Conflict)):
            _files_for_sql(fresh)
    assert maintain(fresh.get("other"), Care(min_files=1)).table == "nexo.other"


def _files_for_sql(lake: Lake) -> None:
    table = find(lake, StreamId("log", 1))
    assert table is not None
    table.files()


def test_a_table_that_cannot_be_read_hides_no_other(
    lake: Lake, filler: Filler, others: Filler
) -> None:
    local_file(filler.table.metadata_location).unlink()
    fresh = Lake(LakeSettings(lake.settings.folder))
    listed = fresh.kept()
    assert next(listed).name() == ("nexo", "other")
    with pytest.raises(Unavailable, match=r"nexo\.log"):
        next(listed)


def test_a_table_that_was_dropped_while_tables_are_listed_is_none(
    lake: Lake, filler: Filler, others: Filler
) -> None:
    listed = lake.kept()
    first = next(listed)
    (other,) = {filler.table.name(), others.table.name()} - {first.name()}
    lake.catalog.drop_table(other)
    assert list(listed) == []


@pytest.mark.parametrize("text", ["oops", "[1", '"'])
def test_a_property_that_another_program_made_unreadable_is_named(
    filler: Filler, text: str
) -> None:
    with filler.table.transaction() as change:
        change.set_properties({OFFSETS: text, "nexo.columns": text})
    with pytest.raises(Conflict, match=r"property nexo\.offsets .* set it back"):
        held_offsets(filler.table)
    with pytest.raises(Conflict, match=r"property nexo\.columns .* set it back"):
        terms_of(filler.table.properties, {})
