"""Calls to the object store and on sockets fail, one in each run (SPEC Q1, Q2).

What was acknowledged is kept, what was refused is absent, what is unsure says so by its type,
nothing is answered with "internal error", and all serves again by itself. ``SOAK=1`` takes many.
File calls are in ``tests/crash/test_failing_calls.py``.
"""

from __future__ import annotations

import os

import pytest

from tests.simulation.calls import SCRIPTS
from tests.simulation.runs import FIRST, simulate

pytestmark = pytest.mark.timeout(7_200 if os.environ.get("SOAK") else 900)

CASES = 1_000 if os.environ.get("SOAK") else 8
"""Of each script."""


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_call_that_fails_loses_nothing(script: str) -> None:
    asked = ["--calls", script, "--seeds", str(CASES), "--workers", "1"]
    if first := os.environ.get(FIRST):
        asked += ["--first", first]
    code, said = simulate(*asked)
    print(said)
    assert code == 0, said
    assert f"{CASES + 1} cases" in said
