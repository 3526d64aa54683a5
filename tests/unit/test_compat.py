"""What is expected of other projects' suites."""

from __future__ import annotations

import pytest

from compat import ledger
from compat.suite import Ending, Result, Suite, Unavailable, checkout

SUITE = Suite("some", "2", lambda _: {})
KNOWN = ledger.Expected(version="1", passed=["a", "b", "gone"], failed={"c": "on purpose"})
FOUND = {
    "a": Result(Ending.PASSED),
    "b": Result(Ending.FAILED, "it says why"),
    "c": Result(Ending.FAILED, "other words"),
    "new": Result(Ending.PASSED),
    "odd": Result(Ending.FAILED),
    "gone": Result(Ending.SKIPPED),
}


def test_only_what_passed_before_is_broken() -> None:
    assert ledger.broken(KNOWN, FOUND) == {"b": "it says why"}
    assert ledger.broken(None, FOUND) == {}
    assert ledger.mended(KNOWN, FOUND) == ["new"]


def test_known_reasons_are_kept() -> None:
    assert ledger.updated(SUITE, KNOWN, FOUND) == {
        "version": "2",
        "passed": ["a", "new"],
        "failed": {"b": "it says why", "c": "on purpose", "odd": ledger.UNEXPLAINED},
    }


def test_the_page_shows_what_is_expected() -> None:
    shown = ledger.PAGE.read_text()
    assert ledger.page(shown, ledger.read()) == shown, "python -m compat --write, or by hand"


def test_every_failure_has_a_reason() -> None:
    reasons = [why for one in ledger.read().values() for why in one["failed"].values()]
    assert ledger.UNEXPLAINED not in reasons


def test_a_suite_that_cannot_be_had_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COMPAT_SOME", raising=False)
    with pytest.raises(Unavailable, match="COMPAT_SOME names no checkout"):
        checkout("COMPAT_SOME")
    monkeypatch.setenv("COMPAT_SOME", "/no/such")
    with pytest.raises(Unavailable, match="no folder /no/such"):
        checkout("COMPAT_SOME")
