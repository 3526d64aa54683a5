"""A lake may be in any catalog that PyIceberg knows, and says plainly when that does not work."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from pyiceberg import catalog as pyiceberg_catalog
from pyiceberg.utils.config import Config

from nexo.errors import ConfigError, Conflict, Unavailable
from nexo.lake.catalog import Lake
from nexo.lake.maintenance.maintain import Care, maintain
from nexo.lake.own_columns import ROWS
from nexo.lake.paths import local_path
from nexo.lake.reading.ranges import file_ranges
from nexo.lake.reading.replay import LakeReader
from nexo.lake.schema import iceberg_schema
from nexo.lake.settings import LakeSettings
from nexo.lake.tables import NEWEST, StreamId
from tests.unit.lake.conftest import Filler

Configure = Callable[..., Lake]


@pytest.fixture
def configured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Configure:
    """A lake whose catalog PyIceberg's own configuration describes."""

    def configure(**properties: str) -> Lake:
        for name, value in properties.items():
            monkeypatch.setenv(f"PYICEBERG_CATALOG__OTHER__{name.upper()}", value)
        monkeypatch.setattr(pyiceberg_catalog, "_ENV_CONFIG", Config())
        return Lake(LakeSettings(tmp_path / "unused", "other", namespace="streams"))

    return configure


def test_a_folder_made_for_a_lake_is_closed_to_others(tmp_path: Path) -> None:
    """Finding G15: the files in it are readable by all."""
    lake = Lake(LakeSettings(tmp_path / "lake"))
    lake.ensure(StreamId("orders", created_ms=1), ROWS)
    assert (tmp_path / "lake").stat().st_mode & 0o007 == 0


def use(lake: Lake) -> list[Path]:
    """Append, merge, sweep and read; returns where the files are."""
    filler = Filler(lake)
    for n in range(4):
        filler.append([b"%d" % n])
    report = maintain(filler.table, Care(min_files=2, max_snapshots=1, grace_s=0))
    assert (report.merged_files, report.merged_into) == (4, 1)
    assert LakeReader(lake, "log").read(0, 0, 1).next_offset == 4
    assert filler.table.refresh().scan().to_arrow().num_rows == 4
    assert [table.name() for table in lake.tables()] == [("streams", "log")]
    assert not lake.settings.folder.exists()
    return [Path(local_path(part.path) or "") for part in file_ranges(filler.table)]


def test_another_sql_catalog_with_a_warehouse_of_its_own(
    configured: Configure, tmp_path: Path
) -> None:
    warehouse = tmp_path / "far away"
    lake = configured(
        type="sql", uri=f"sqlite:///{tmp_path}/shared.db", warehouse=f"file://{warehouse}"
    )
    assert all(path.is_relative_to(warehouse) for path in use(lake))
    assert (tmp_path / "shared.db").exists()


def test_a_catalog_in_memory(configured: Configure, tmp_path: Path) -> None:
    lake = configured(type="in-memory", warehouse=f"file://{tmp_path}/warehouse")
    assert all(path.is_relative_to(tmp_path / "warehouse") for path in use(lake))


def test_a_catalog_that_does_not_answer_is_named(configured: Configure) -> None:
    with socket.socket() as taken:  # bound but not listening: connections are refused
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        lake = configured(type="rest", uri=f"http://127.0.0.1:{port}")
        with pytest.raises(Unavailable, match=f"catalog other: .*{port}.* refused") as refused:
            lake.find("log")
    assert "\n" not in refused.value.message


@pytest.mark.parametrize(
    ("properties", "text"),
    [
        ({}, "catalog other: URI missing"),
        ({"type": "odd"}, "'odd' is not a valid"),
        ({"type": "bigquery"}, "not installed"),
    ],
)
def test_a_catalog_that_cannot_be_is_a_matter_of_configuration(
    configured: Configure, properties: dict[str, str], text: str
) -> None:
    with pytest.raises(ConfigError, match=text):
        configured(**properties).find("log")


def test_a_catalog_whose_folder_is_missing_is_named(configured: Configure, tmp_path: Path) -> None:
    lake = configured(type="sql", uri=f"sqlite:///{tmp_path}/no/c.db", warehouse="file:///tmp")
    with pytest.raises(Unavailable, match=r"catalog other: .*unable to open"):
        lake.find("log")


def test_a_damaged_catalog_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "catalog.db").write_bytes(b"this is no database" * 100)
    with pytest.raises(Unavailable, match=r"catalog\.db: file is not a database"):
        Lake(LakeSettings(tmp_path)).find("log")


def test_a_stream_and_a_derived_table_of_one_name_have_a_table_each(tmp_path: Path) -> None:
    """P12: a stream 'orders_latest' beside a compacted 'orders' was refused for ever."""
    lake = Lake(LakeSettings(tmp_path / "lake"))
    orders, other = StreamId("orders", 1), StreamId("orders_latest", 2)
    newest = lake.ensure(orders, ROWS, NEWEST)
    records = lake.ensure(other, ROWS)
    assert newest.name() != records.name()
    assert lake.get("orders_latest").name() == records.name()
    known = lake.known(orders, NEWEST)
    assert known is not None
    assert known.name() == newest.name()
    assert lake.ensure(other, ROWS).name() == records.name()
    assert lake.find("orders") is None


def test_a_table_of_somebody_else_is_left_alone(tmp_path: Path) -> None:
    lake = Lake(LakeSettings(tmp_path / "lake"))
    lake.catalog.create_namespace("nexo")
    lake.catalog.create_table(("nexo", "orders"), iceberg_schema(ROWS))
    with pytest.raises(Conflict, match=r"is not Nexo's"):
        lake.ensure(StreamId("orders", 1), ROWS)
    assert lake.find("orders") is None
