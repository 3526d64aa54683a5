"""The simulator itself: the same everywhere, not blind, and without what was mended coming back."""

from __future__ import annotations

import pytest

from tests.simulation.planted import FOLDER, Limits, copied, find, read
from tests.simulation.runs import simulate

pytestmark = pytest.mark.timeout(900)  # they count operations, however busy the machine is


@pytest.mark.parametrize("scenario", ["one", "two"])
def test_the_same_seed_gives_the_same_hash_in_another_checkout(scenario: str) -> None:  # SPEC Q1
    asked = ("--scenario", scenario, "--seed", "2", "--no-shrink")
    with copied() as copy:
        (_, one), (_, other) = simulate(*asked), simulate(*asked, root=copy.root)
    assert "hash " in one
    assert one == other


def test_a_lost_sync_is_seen() -> None:  # SPEC Q1
    planted = read(FOLDER / "ack-before-sync.patch")
    with copied() as copy:
        assert find(planted, Limits(40), copy).ok, "a reply before the sync was not found"


def test_what_was_found_once_is_not_found_again() -> None:  # SPEC Q1
    code, said = simulate("--regressions", "--workers", "1")
    assert code == 0, said
