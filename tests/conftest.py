"""Fixtures every suite shares: servers, and clients connected to them."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

import nexo
from nexo import testing
from tests import schedule, skips
from tools import spark_archive

# A shared machine may stall at any time, so an example has no deadline.
settings.register_profile("calm", deadline=None)
settings.register_profile("quick", deadline=None, max_examples=10, stateful_step_count=20)
settings.register_profile("soak", deadline=None, max_examples=10_000)
settings.load_profile("calm")

# Every JVM that a test starts, in this process or below it, starts in half the time.
os.environ.setdefault("SPARK_SUBMIT_OPTS", spark_archive.use(Path(sys.prefix) / "spark.jsa"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Spark's tests first, unit tests last."""
    items.sort(key=schedule.place)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Hand out what was collected in its order."""
    if config.getoption("dist") != "loadfile":
        return None
    config.option.loadscopereorder = False
    return schedule.InTurn(config, log)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail a run in CI that skipped what the machine lacks."""
    reporter: Any = session.config.pluginmanager.get_plugin("terminalreporter")
    if not os.environ.get("CI") or reporter is None:
        return
    reporter.ensure_newline()
    for line in skips.lacking(reporter.stats.get("skipped", ())):
        reporter.write_line(f"skipped in CI: {line}", red=True)
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.fixture(autouse=True)
def _own_log_level() -> Iterator[None]:
    """Undo what a test does to the level of all logs; Celery's workers raise it."""
    level = logging.getLogger().level
    yield
    logging.getLogger().setLevel(level)


@pytest.fixture
def unlogged() -> Iterator[None]:
    """For tests whose log is huge or not UTF-8, which no report of a parallel run can hold."""
    logging.disable()
    yield
    logging.disable(logging.NOTSET)


@pytest.fixture
def url(nexo_url: str) -> str:
    """A fresh embedded server."""
    return nexo_url


@pytest.fixture
def served(tmp_path: Path) -> Iterator[testing.Process]:
    """A fresh server of real processes, to be killed and restarted; it has no dashboard."""
    with testing.process(tmp_path / "nexo", dashboard=False) as process:
        yield process


@pytest.fixture
def client(url: str) -> Iterator[nexo.Client]:
    """A sync client of a fresh embedded server."""
    with nexo.Client(url) as client:
        yield client


@pytest.fixture
async def aclient(url: str) -> AsyncIterator[nexo.AsyncClient]:
    """An async client of a fresh embedded server."""
    async with nexo.AsyncClient(url) as client:
        yield client
