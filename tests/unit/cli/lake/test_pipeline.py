"""``nexo pipeline maintain`` does not delete under a running pipeline."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

pytest.importorskip("pyiceberg")

from pyiceberg.table import Table

from nexo import cli
from nexo.errors import Conflict
from nexo.lake.catalog import Lake
from nexo.lake.maintenance import maintain as maintenance
from nexo.lake.own_columns import ROWS
from nexo.lake.progress import Tracker
from nexo.lake.settings import LakeSettings
from nexo.lake.tables import StreamId


def maintain(folder: Path, grace: str) -> Result:
    arguments = ["pipeline", "maintain", "--lake", str(folder), "--grace", grace]
    return CliRunner().invoke(cli.main, arguments)


def test_files_are_not_deleted_at_once_while_a_pipeline_runs(tmp_path: Path) -> None:
    Lake(LakeSettings(tmp_path)).ensure(StreamId("log", 1), ROWS)
    with Tracker().running(tmp_path):
        refused = maintain(tmp_path, "0s")
        assert refused.exit_code == 1
        assert refused.stderr.startswith("error[CONFLICT]: pipeline ")
        assert "--grace 10m" in refused.stderr
        assert maintain(tmp_path, "1h").exit_code == 0
    assert maintain(tmp_path, "0s").exit_code == 0


def test_a_table_that_cannot_be_maintained_holds_up_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = Lake(LakeSettings(tmp_path))
    for name in ("good", "bad", "last"):
        lake.ensure(StreamId(name, 1), ROWS)
    given = maintenance.maintain

    def refusing(table: Table, care: maintenance.Care) -> maintenance.Report:
        if table.name()[-1] == "bad":
            raise Conflict("rows are marked as deleted")
        return given(table, care)

    monkeypatch.setattr(maintenance, "maintain", refusing)
    done = maintain(tmp_path, "1h")
    assert done.exit_code == 1
    assert [line.split("\t")[0] for line in done.stdout.splitlines()] == ["nexo.good", "nexo.last"]
    assert done.stderr == "error[CONFLICT]: rows are marked as deleted\n"
