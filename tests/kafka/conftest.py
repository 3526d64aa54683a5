"""A server for Kafka's clients."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

import pytest

import nexo.testing
from tests.kafka.ledger import Ledger


def pytest_configure(config: pytest.Config) -> None:
    """Write the ledger if asked to."""
    if os.environ.pop("NEXO_LEDGER", "") == "write":  # servers refuse variables they do not know
        config.pluginmanager.register(Ledger())


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """One server for all tests of a module."""
    with nexo.testing.server() as found:
        yield found


@pytest.fixture
def bootstrap(url: str) -> str:
    """Where Kafka's clients connect."""
    return url.removeprefix("nexo://")


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A topic for one test alone."""
    return re.sub(r"[^\w.-]", "-", request.node.name)
