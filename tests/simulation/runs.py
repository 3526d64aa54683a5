"""Runs the simulator in a process of its own: it replaces the clock of the whole interpreter."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

RUNS = {"one": 30, "two": 8}
"""Fresh seeds of each scenario in `make test`: some 30 s of one core for each."""
_ROOT = Path(__file__).parents[2]


def simulate(*arguments: str) -> tuple[int, str]:
    """The exit status, and what it prints."""
    command = [sys.executable, "-m", "tests.simulation", *arguments]
    ended = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, check=False)
    return ended.returncode, ended.stdout + ended.stderr


def explore(scenario: str, seeds: int) -> str:
    """Fresh seeds; fails with their findings, and how to replay them."""
    code, said = simulate(
        "--scenario", scenario, "--seeds", str(seeds), "--workers", "1", "--no-shrink"
    )
    assert code == 0, said
    return said
