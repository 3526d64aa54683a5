"""Merging on executors, as the driver plans it (SPEC P6)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from nexo.lake.catalog import Lake
from nexo.lake.files import FileWriter, target
from nexo.lake.maintenance.planning import Care
from nexo.lake.once import commit_anyway
from nexo.lake.paths import local_file
from nexo.lake.progress import TableDebt
from nexo.lake.settings import LakeSettings
from nexo.lake.snapshot import TableChange
from nexo.lake.user_tables import ensure_user_table
from pyspark_nexo import merging
from pyspark_nexo.tiering import TaskGroup


def here(_: Any, work: TaskGroup, __: str) -> list[Any]:
    return [work.run(each) for each in work.items]


def test_a_table_that_cannot_be_read_stops_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(merging, "slots", lambda _: 4)
    monkeypatch.setattr(merging, "run_tasks", here)
    lake, columns = Lake(LakeSettings(tmp_path)), pa.schema([("n", pa.int64())])
    for name in "abc":
        table = ensure_user_table(lake, name, columns)
        for n in range(3):
            files = FileWriter(target(table.refresh()), "w").save([pa.table({"n": [n]}, columns)])
            commit_anyway(table, TableChange(added=files))
        if name == "b":
            local_file(table.refresh().metadata_location).write_bytes(b"{")
    notes, owed = list[str](), list[TableDebt]()
    care = Care(min_files=2, grace_s=0)
    spark: Any = None
    fresh = Lake(lake.settings)
    merged = merging.Merging(spark, fresh, notes.append, owed.append, care).round()
    assert merged == 6
    assert len(owed) == 2
    assert any("maintenance will try again" in each for each in notes)
