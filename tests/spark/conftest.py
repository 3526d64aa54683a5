"""One Spark for the whole suite: starting it takes seconds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("pyiceberg")

from nexo.lake.catalog import Lake
from nexo.lake.settings import LakeSettings
from pyspark_nexo.pipeline import Pipeline
from pyspark_nexo.sessions import session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TIMEOUT_S = 600
"""A busy machine takes minutes to start a JVM."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.spark)
            item.add_marker(pytest.mark.timeout(TIMEOUT_S))


@dataclass
class Tally:
    """What the tests of exactly-once counted; printed at the end."""

    runs: int = 0
    published: int = 0
    rows: int = 0
    distinct: int = 0
    dead_letters: int = 0
    orphans: int = 0


TALLY = pytest.StashKey[Tally]()


@pytest.fixture
def tally(request: pytest.FixtureRequest) -> Tally:
    """The counts of this session."""
    return request.config.stash.setdefault(TALLY, Tally())


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    tally = config.stash.get(TALLY, None)
    if tally is not None:
        found = ", ".join(f"{name.replace('_', ' ')} {n:,}" for name, n in asdict(tally).items())
        terminalreporter.write_line(f"exactly-once: {found}")


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A local Spark with two cores."""
    folder = tmp_path_factory.mktemp("spark")
    conf = {
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.local.dir": str(folder / "local"),
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.python.authenticate.socketTimeout": "300s",  # a busy machine forks slowly
    }
    running = session("local[2]", app="nexo tests", conf=conf)
    yield running
    running.stop()


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """An empty lake in a folder."""
    return Lake(LakeSettings(tmp_path / "lake"))


@pytest.fixture
def pipeline(spark: SparkSession, lake: Lake, url: str) -> Pipeline:
    """A pipeline from a fresh server into an empty lake."""
    return Pipeline(spark, lake, url)
