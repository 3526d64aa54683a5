"""How long a client waits before it connects again."""

from __future__ import annotations

import random

from nexo.client.connecting import pause_s


def test_waits_double_up_to_two_seconds_and_are_spread() -> None:
    """SPEC A5."""
    for failures, longest_s in ((1, 0.1), (2, 0.2), (5, 1.6), (6, 2.0), (5_000, 2.0)):
        waits = [pause_s(failures) for _ in range(200)]
        assert longest_s / 2 <= min(waits) < max(waits) <= longest_s


def test_one_of_several_places_is_asked_often() -> None:
    """A standby may lead soon (SPEC N5)."""
    assert max(pause_s(5_000, places=2) for _ in range(200)) <= 0.5


def test_a_program_that_seeded_its_randomness_keeps_it() -> None:
    """A link reconnects on a thread of its own, at any moment of the program."""
    before = random.getstate()
    pause_s(3)
    assert random.getstate() == before
