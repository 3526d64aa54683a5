"""Nexo and other programs write to one lake in any order, beside a model (SPEC I3, I4, I5, I8)."""

from __future__ import annotations

import pytest

from tests.simulation.runs import explore


@pytest.mark.timeout(900)
def test_nothing_is_lost_or_wrong_whoever_else_writes_to_the_lake() -> None:
    """`make simulate SCENARIO=lake SEED=n` replays and shrinks a seed."""
    print(explore("lake", workers=2))
