"""Arguments are checked at the call."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from nexo.client import checks
from nexo.errors import InvalidInput
from nexo.options.units import millis


@pytest.mark.parametrize(
    ("value", "expected"),
    [(0, 0), (1.5, 1_500), (0.0004, 1), ("5m", 300_000), (timedelta(seconds=2), 2_000), (0.1, 100)],
)
def test_a_duration_is_seconds_a_text_or_a_timedelta(value: Any, expected: int) -> None:
    assert millis(value) == expected


@pytest.mark.parametrize(
    "value",
    [float("nan"), float("inf"), -float("inf"), 1e18, -1, True, None, b"5m", "5", "9" * 30 + "d",
     10**400, timedelta(seconds=-1)],
)  # fmt: skip
def test_anything_else_is_no_duration(value: Any) -> None:
    with pytest.raises(InvalidInput):
        millis(value)


def test_a_duration_that_must_last_is_not_nothing() -> None:
    assert checks.positive_millis(0.0001, "lease") == 1
    with pytest.raises(InvalidInput, match="lease must be more than 0"):
        checks.positive_millis(0, "lease")


@pytest.mark.parametrize("value", [5, None, b"x", "\udcff"])
def test_text_is_text_that_can_travel(value: Any) -> None:
    with pytest.raises(InvalidInput, match="the key"):
        checks.text(value, "the key")
    assert checks.text("tëxt 🎈", "the key") == "tëxt 🎈"


@pytest.mark.parametrize("value", ["1", 1.0, True, None, 0, 11])
def test_a_whole_number_lies_in_its_range(value: Any) -> None:
    with pytest.raises(InvalidInput, match="batch"):
        checks.whole(value, "batch", 1, 10)
    assert checks.whole(10, "batch", 1, 10) == 10


def test_a_handler_can_be_called() -> None:
    checks.function(print)
    with pytest.raises(InvalidInput, match="the handler is a function, not NoneType"):
        checks.function(None)


def test_the_longest_duration_is_said_in_seconds() -> None:
    with pytest.raises(InvalidInput, match="use 0 or more, at most 90,000 seconds"):
        millis("2d", "lease", 90_000_000)
