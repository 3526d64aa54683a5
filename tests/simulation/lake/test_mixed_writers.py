"""Nexo and other programs write to one lake in any order, beside a model (SPEC I3, I4, I5, I8)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SEQUENCES = 200
ROOT = Path(__file__).parents[3]


@pytest.mark.timeout(600)
def test_nothing_is_lost_or_wrong_whoever_else_writes_to_the_lake() -> None:
    """Fresh seeds each time; `make simulate SCENARIO=lake SEED=n` replays and shrinks one."""
    given = ("--scenario", "lake", "--seeds", str(SEQUENCES), "--no-shrink")
    ended = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "tests.simulation", *given],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert f"{SEQUENCES} runs" in ended.stdout
