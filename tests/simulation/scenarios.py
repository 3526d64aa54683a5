"""The scenarios by name."""

from __future__ import annotations

from tests.simulation.system import System

SCENARIOS = {"one": System}
