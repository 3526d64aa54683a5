"""A folder's tables read without PyIceberg are those that PyIceberg reads (SPEC I10)."""

from __future__ import annotations

import subprocess
import sys

import pytest

from nexo.errors import Corrupt
from nexo.lake.catalog import Lake
from nexo.lake.maintenance.maintain import Care, maintain
from nexo.lake.reading.ranges import file_ranges
from nexo.lake.reading.stored import StoredTable, find
from nexo.lake.tables import DEAD_LETTERS, StreamId
from nexo.lake.typed import columns as typed

from ..conftest import Filler

LOG = StreamId("log", 1)


def _same(lake: Lake) -> StoredTable:
    """The table, read both ways."""
    found, table = find(lake, LOG), lake.known(LOG)
    assert found is not None
    assert table is not None
    assert found.properties == table.properties
    assert found.names == {each.field_id: each.name for each in table.schema().fields}
    assert sorted(each.path for each in found.files()) == sorted(
        each.path for each in file_ranges(table)
    )
    return found


def test_columns_properties_and_files_are_the_same(lake: Lake, filler: Filler) -> None:
    assert _same(lake).files() == []
    for number in range(3):
        filler.append([b'{"n": %d}' % number] * 10)
    assert len(_same(lake).files()) == 3
    typed.set_schema(lake.get("log"), {"n": "long"})
    filler.append([b'{"n": 1}'])
    assert [each.kind for each in _same(lake).fields][-1] == "long"
    maintain(lake.get("log"), Care(min_files=2))
    assert len(_same(lake).files()) == 1


def test_only_the_stream_s_own_table_is_found(lake: Lake, filler: Filler) -> None:
    filler.append([b"x"])
    assert find(lake, StreamId("log", 2)) is None
    assert find(lake, StreamId("other", 1)) is None
    assert find(lake, LOG, DEAD_LETTERS) is None


def test_metadata_that_is_no_json_is_corrupt(lake: Lake, filler: Filler) -> None:
    filler.append([b"x"])
    folder = lake.settings.folder / "warehouse"
    for path in folder.rglob("*.metadata.json"):
        path.write_text("{")
    with pytest.raises(Corrupt, match=r"cannot read table nexo\.log"):
        find(lake, LOG)


@pytest.mark.parametrize("left", [0, 3, 300])
def test_a_damaged_manifest_is_corrupt(lake: Lake, filler: Filler, left: int) -> None:
    filler.append([b"x"])
    folder = lake.settings.folder / "warehouse"
    for path in folder.rglob("*.avro"):
        path.write_bytes(path.read_bytes()[:left])
    found = find(lake, LOG)
    assert found is not None
    with pytest.raises(Corrupt, match=r"cannot read table nexo\.log: .*\.avro"):
        found.files()


def test_a_query_imports_neither_pyiceberg_nor_spark(lake: Lake, filler: Filler) -> None:
    filler.append([b"x"])
    code = (
        "import sys, pathlib; from nexo.sql import engine;"
        "from nexo.lake.reading.stored import find;"
        "from nexo.lake.catalog import Lake, StreamId; from nexo.lake.settings import LakeSettings;"
        f"lake = Lake(LakeSettings(pathlib.Path({str(lake.settings.folder)!r})));"
        "assert find(lake, StreamId('log', 1)).files();"
        "print([m for m in ('pyiceberg', 'sqlalchemy', 'pyspark') if m in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert found.stdout.strip() == "[]"
