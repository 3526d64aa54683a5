"""The scenarios by name."""

from __future__ import annotations

from tests.simulation.system import System
from tests.simulation.two import Two

SCENARIOS: dict[str, type[System]] = {"one": System, "two": Two}
