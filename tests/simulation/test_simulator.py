"""The simulator itself: the same everywhere, not blind, and without what was mended coming back."""

from __future__ import annotations

import pytest

from tests.simulation.planted import FOLDER, find, read
from tests.simulation.runs import simulate


@pytest.mark.parametrize("scenario", ["one", "two"])
def test_the_same_seed_gives_the_same_hash_in_another_process(scenario: str) -> None:  # SPEC Q1
    asked = ("--scenario", scenario, "--seed", "2", "--no-shrink")
    (_, one), (_, other) = simulate(*asked), simulate(*asked)
    assert "hash " in one
    assert one == other


@pytest.mark.parametrize("mistake", ["ack-before-sync", "renewal-proves-nothing"])
def test_a_planted_mistake_is_seen(mistake: str) -> None:  # SPEC Q1
    planted = read(FOLDER / f"{mistake}.patch")
    assert find(planted, 40, 1).seeds, f"{mistake} was not found"


def test_what_was_found_once_is_not_found_again() -> None:  # SPEC Q1
    code, said = simulate("--regressions", "--workers", "1")
    assert code == 0, said
