"""Fresh seeds of scenario one: one server, on virtual time, with faults."""

from __future__ import annotations

import pytest

from tests.simulation.runs import explore

pytestmark = pytest.mark.timeout(900)  # they count operations, however busy the machine is


def test_seeds_find_nothing() -> None:  # SPEC Q1
    """A number of runs, not a time: a busy machine changes nothing. The seeds are printed."""
    print(explore("one"))
