"""The lake as the dashboard shows it."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path
from typing import Any, cast

import pytest

pytest.importorskip("pyiceberg")

from nexo.admin.api import pipeline
from nexo.admin.api.pipeline import missing
from nexo.admin.api.stream import OneStream
from nexo.admin.context import ApiContext, ServerAccess
from nexo.admin.http.routes import Nothing
from nexo.admin.lake_views import TableHistory, read_tables
from nexo.client.address import Address
from nexo.config import Settings
from nexo.errors import NotFound
from nexo.lake.catalog import Lake
from nexo.lake.progress import STALE_MS, MicroBatchResult, Tracker
from nexo.lake.settings import LakeSettings
from tests.unit.lake.conftest import Filler


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "PATIENCE_S", 60.0)
    monkeypatch.setattr(pipeline, "KEEP_S", 0.0)


def context(settings: Settings) -> ApiContext:
    unused = cast(Any, None)
    return ApiContext(ServerAccess(settings, Address("127.0.0.1")), unused, unused, unused, set())


def test_tables_show_their_snapshots_and_offsets(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path)
    assert "pipeline" in missing(settings)
    filler = Filler(Lake(LakeSettings(settings.lake_folder)), "a/<b>")
    filler.append([b"x", b"y", b"z"])
    filler.append([b"w"])
    assert missing(settings) == ""
    (view,) = read_tables(settings)
    assert (view.table.stream, view.table.records, view.table.files) == ("a/<b>", 4, 2)
    assert view.table.offsets == {"0": 4}
    assert [snapshot.added_records for snapshot in view.snapshots] == [1, 3]
    assert view.table.updated_ms == view.snapshots[0].committed_ms


def test_pipelines_tell_how_far_they_are_and_what_failed(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path)
    lake = Lake(LakeSettings(settings.lake_folder))
    filler = Filler(lake, "orders")
    filler.append([b"x"] * 5)
    tracker = Tracker()
    with tracker.running(settings.lake_folder, 1_000):
        tracker.looked("orders", lake.get("orders"), 7, 1_000)
        batch = MicroBatchResult("orders", 5, 1, 0.2)
        tracker.took(lake.get("orders"), batch, complete=False)
        tracker.failed("disk gone", ["orders"])
        tracker.save(settings.lake_folder)
        found = asyncio.run(pipeline.tables(context(settings), Nothing()))
    (row,) = found.pipelines
    assert (row.state, row.taken, row.behind, row.error) == ("running", 5, 2, "disk gone")
    (stream,) = found.streams
    assert (stream.stream, stream.records, stream.last_taken) == ("orders", 5, 5)
    found = asyncio.run(pipeline.tables(context(settings), Nothing()))
    assert [row.state for row in found.pipelines] == ["ended"]
    view = asyncio.run(pipeline.table(context(settings), OneStream("orders")))
    assert view.progress is not None
    assert (view.table.records, view.progress.error) == (5, "disk gone")
    with pytest.raises(NotFound, match="clicks"):
        asyncio.run(pipeline.table(context(settings), OneStream("clicks")))


def test_a_pipeline_that_was_killed_is_silent(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path)
    tracker = Tracker()
    tracker.save(settings.lake_folder)
    (path,) = (settings.lake_folder / "pipelines").glob("*.json")
    now_ms = int(time.time() * 1000)
    text = path.read_text().replace(str(tracker.pipeline.updated_ms), str(now_ms - 2 * STALE_MS))
    path.write_text(text)
    found = asyncio.run(pipeline.tables(context(settings), Nothing()))
    assert [row.state for row in found.pipelines] == ["silent"]


def test_a_slow_catalog_holds_no_page_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Settings(data_dir=tmp_path)
    lake = Lake(LakeSettings(settings.lake_folder))
    Filler(lake, "orders").append([b"x"] * 5)
    tracker = Tracker()
    tracker.looked("orders", lake.get("orders"), 0, 1_000)
    tracker.save(settings.lake_folder)
    opened = threading.Event()

    def slow(settings: Settings) -> list[TableHistory]:
        opened.wait(60)
        return read_tables(settings)

    monkeypatch.setattr(pipeline, "read_tables", slow)

    async def look() -> None:
        monkeypatch.setattr(pipeline, "PATIENCE_S", 0.01)
        first = await pipeline.tables(context(settings), Nothing())
        assert (first.loading, first.tables, len(first.streams)) == (True, [], 1)
        view = await pipeline.table(context(settings), OneStream("orders"))
        assert (view.loading, view.table.records) == (True, 5)
        opened.set()
        monkeypatch.setattr(pipeline, "PATIENCE_S", 60.0)
        later = await pipeline.tables(context(settings), Nothing())
        assert (later.loading, len(later.tables)) == (False, 1)

    asyncio.run(look())
