"""Times and places as people type them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import click
import pytest

from nexo.cli import times


@pytest.mark.parametrize(
    ("text", "expected_ms"),
    [
        ("0", 0),
        ("60", 60_000),
        ("1.5", 1_500),
        ("250ms", 250),
        ("1.5h", 5_400_000),
        ("7d", 604_800_000),
    ],
)
def test_a_duration_is_seconds_or_has_a_unit(text: str, expected_ms: int) -> None:
    """SPEC K5: one rule for every command."""
    assert times.seconds()(text) == expected_ms / 1000


@pytest.mark.parametrize("text", ["", "5y", "-1", "1e3", "inf", "ten", "1h30m"])
def test_what_is_no_duration_is_told_what_is(text: str) -> None:
    with pytest.raises(click.BadParameter, match="500ms, 10m or 7d"):
        times.seconds()(text)


def test_a_duration_may_have_a_least_and_always_has_a_most() -> None:
    with pytest.raises(click.BadParameter, match="at least 50ms"):
        times.seconds(least_ms=50)("0.01")
    with pytest.raises(click.BadParameter, match="at most 36500d"):
        times.seconds()("99999999999d")


def test_places_are_words_offsets_or_times() -> None:
    assert times.place("end") == "end"
    assert times.place("17") == 17
    assert times.place("0:5,2:9") == {0: 5, 2: 9}
    assert times.place("2026-01-31T12:00") == datetime(2026, 1, 31, 12, tzinfo=UTC)
    assert times.place("2026-01-31T12:00+02:00") == datetime(2026, 1, 31, 10, tzinfo=UTC)


@pytest.mark.parametrize("text", ["99999999999999999999999", "0:99999999999999999999", "9" * 5_000])
def test_an_offset_beyond_64_bits_is_refused(text: str) -> None:
    """SPEC K5: bad input is a clear message, not a traceback."""
    with pytest.raises(click.BadParameter, match="larger than any offset"):
        times.place(text)


def test_an_age_counts_back_from_now() -> None:
    found = times.place("2h")
    assert isinstance(found, datetime)
    assert abs(datetime.now(UTC) - timedelta(hours=2) - found) < timedelta(minutes=1)
