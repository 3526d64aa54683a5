"""The scenarios by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def _one() -> Any:
    from tests.simulation.system import System  # noqa: PLC0415 - only what is asked for

    return System


def _two() -> Any:
    from tests.simulation.two import Two  # noqa: PLC0415 - as above

    return Two


def _lake() -> Any:
    from tests.simulation.lake.run import MixedWriters  # noqa: PLC0415 - as above

    return MixedWriters


SCENARIOS: dict[str, Callable[[], Any]] = {"one": _one, "two": _two, "lake": _lake}
"""What loads the class of each."""
