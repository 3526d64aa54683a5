"""The lake as the dashboard shows it."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("pyiceberg")

from nexo.admin.api.pipeline import _missing, _read
from nexo.config import Settings
from nexo.lake.catalog import Lake
from nexo.lake.settings import LakeSettings
from tests.unit.lake.conftest import Filler


def test_tables_show_their_snapshots_and_offsets(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path)
    assert "pipeline" in _missing(settings)
    filler = Filler(Lake(LakeSettings(settings.lake_folder)), "a/<b>")
    filler.append([b"x", b"y", b"z"])
    filler.append([b"w"])
    assert _missing(settings) == ""
    (view,) = _read(settings).values()
    assert (view.table.stream, view.table.records, view.table.files) == ("a/<b>", 4, 2)
    assert view.table.offsets == {"0": 4}
    assert [snapshot.added_records for snapshot in view.snapshots] == [1, 3]
    assert view.table.updated_ms == view.snapshots[0].committed_ms
