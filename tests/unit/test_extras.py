"""A missing extra is one sentence that says what to install."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from nexo import cli, extras
from nexo.errors import ConfigError


@pytest.fixture
def without_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    def find(name: str) -> object | None:
        return None if name == "pyspark" else SimpleNamespace()

    monkeypatch.setattr(extras, "find_spec", find)


@pytest.mark.usefixtures("without_spark")
@pytest.mark.parametrize("command", [("pipeline", "run", "--once"), ("serve", "--pipeline")])
def test_a_pipeline_without_spark_says_what_to_install(
    command: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    refused = CliRunner().invoke(cli.main, command)
    assert refused.exit_code == 1
    assert refused.stderr == (
        "error[CONFIG]: the pipeline needs pyspark, which is not installed: "
        "pip install 'nexo-broker[spark]'\n"
    )
    assert list(tmp_path.iterdir()) == []


def test_sql_of_the_dashboard_without_duckdb_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(extras, "find_spec", lambda name: None if name == "duckdb" else name)
    with pytest.raises(ConfigError) as refused:
        extras.require("sql")
    assert refused.value.message == (
        "the dashboard's SQL needs duckdb, which is not installed: pip install 'nexo-broker[sql]'"
    )
