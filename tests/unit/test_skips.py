"""Which skipped tests fail a run in CI."""

from __future__ import annotations

from types import SimpleNamespace

from tests.skips import lacking


def test_what_is_missing_is_named_and_what_takes_long_is_not() -> None:
    reasons = ["Skipped: no chromium", "Skipped: takes minutes: make soak", "slow: SOAK=1"]
    reports = [SimpleNamespace(longrepr=("test_it.py", 3, reason)) for reason in reasons]
    assert lacking(reports) == ["test_it.py: Skipped: no chromium"]
