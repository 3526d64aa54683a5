"""Runs the simulator in a process of its own: it replaces the clock of the whole interpreter."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

RUNS = {"one": 30, "two": 8, "lake": 200}
"""Seeds of each scenario in `make test`: some 30 s of one core for each."""
FIRST = "SIMULATION_FIRST"
"""A variable with the first seed. CI sets it, to judge a change by what it changes; without
it the seeds are fresh."""
_ROOT = Path(__file__).parents[2]


def simulate(*arguments: str, root: Path = _ROOT) -> tuple[int, str]:
    """The exit status, and what it prints; ``root`` has the source."""
    command = [sys.executable, "-W", "ignore", "-m", "tests.simulation", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(root / "src")}
    ended = subprocess.run(
        command, cwd=root, env=environment, capture_output=True, text=True, check=False
    )
    return ended.returncode, ended.stdout + ended.stderr


def explore(scenario: str, workers: int = 1) -> str:
    """Runs seeds; fails with their findings, and how to replay them."""
    seeds = str(RUNS[scenario])
    asked = ["--scenario", scenario, "--seeds", seeds, "--workers", str(workers), "--no-shrink"]
    if first := os.environ.get(FIRST):
        asked += ["--first", first]
    code, said = simulate(*asked)
    assert code == 0, said
    assert f"{seeds} runs" in said
    return said
