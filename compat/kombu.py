"""Kombu's functional tests: those that it runs against its own transports."""

from __future__ import annotations

from compat.suite import AGAIN, Results, Suite, pytest, sources

VERSION = "5.7.0"
_TESTS = """
import os

import kombu
import pytest

from .common import (
    BaseEventLoop, BaseExchangeTypes, BaseMessage, BasePriority, BaseTimeToLive,
    BasicFunctionality,
)


@pytest.fixture
def connection():
    return kombu.Connection(os.environ["COMPAT_URL"])


@pytest.fixture
def invalid_connection():
    return kombu.Connection("nexo://127.0.0.1:1")


class test_NexoBasicFunctionality(BasicFunctionality): ...


class test_NexoExchangeTypes(BaseExchangeTypes): ...


class test_NexoTimeToLive(BaseTimeToLive): ...


class test_NexoPriority(BasePriority): ...


class test_NexoMessage(BaseMessage): ...


class test_NexoEventLoop(BaseEventLoop): ...
"""


def run(port: int) -> Results:
    """They are classes that each transport derives from."""
    folder = sources("kombu", VERSION, "COMPAT_KOMBU")
    (folder / "t" / "integration" / "test_nexo.py").write_text(_TESTS)
    variables = {"COMPAT_URL": f"nexo://127.0.0.1:{port}"}
    options = (AGAIN, "--timeout=60", "-p", "nexo.integrations.celery")
    return pytest(folder, ["t/integration/test_nexo.py"], variables, *options)


SUITE = Suite("kombu", VERSION, run)
