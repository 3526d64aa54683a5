"""Times, sizes and places as people type them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import click
import pytest

from nexo.cli import sizes


@pytest.mark.parametrize(
    ("text", "expected"),
    [("0", 0), ("1000", 1_000), ("1k", 1_024), ("2 KiB", 2_048), ("1MB", 1024**2), ("3g", 3 << 30)],
)
def test_sizes_are_in_powers_of_1024(text: str, expected: int) -> None:
    assert sizes.size(text) == expected


@pytest.mark.parametrize("text", ["", "-1", "1.5g", "one", "1 x"])
def test_a_size_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter):
        sizes.size(text)


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
    assert sizes.duration(text) == expected_ms
    assert sizes.seconds()(text) == expected_ms / 1000


@pytest.mark.parametrize("text", ["", "5y", "-1", "1e3", "inf", "ten", "1h30m"])
def test_what_is_no_duration_is_told_what_is(text: str) -> None:
    with pytest.raises(click.BadParameter, match="500ms, 10m or 7d"):
        sizes.seconds()(text)


def test_a_duration_may_have_a_least_and_always_has_a_most() -> None:
    with pytest.raises(click.BadParameter, match="at least 50ms"):
        sizes.seconds(least_ms=50)("0.01")
    with pytest.raises(click.BadParameter, match="at most 36500d"):
        sizes.seconds()("99999999999d")


@pytest.mark.parametrize(
    ("span_ms", "text"),
    [
        (0, "0s"),
        (0.5, "0.5ms"),
        (250, "250ms"),
        (2_500, "2.5s"),
        (90_000, "1m 30s"),
        (86_400_000, "1d"),
    ],
)
def test_durations_are_shown_for_people(span_ms: float, text: str) -> None:
    assert sizes.span_text(span_ms) == text


def test_places_are_words_offsets_or_times() -> None:
    assert sizes.place("end") == "end"
    assert sizes.place("17") == 17
    assert sizes.place("0:5,2:9") == {0: 5, 2: 9}
    assert sizes.place("2026-01-31T12:00") == datetime(2026, 1, 31, 12, tzinfo=UTC)
    assert sizes.place("2026-01-31T12:00+02:00") == datetime(2026, 1, 31, 10, tzinfo=UTC)


@pytest.mark.parametrize("text", ["99999999999999999999999", "0:99999999999999999999", "9" * 5_000])
def test_an_offset_beyond_64_bits_is_refused(text: str) -> None:
    """SPEC K5: bad input is a clear message, not a traceback."""
    with pytest.raises(click.BadParameter, match="larger than any offset"):
        sizes.place(text)


def test_an_age_counts_back_from_now() -> None:
    found = sizes.place("2h")
    assert isinstance(found, datetime)
    assert abs(datetime.now(UTC) - timedelta(hours=2) - found) < timedelta(minutes=1)


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (1_023, "1023 B"), (1_536, "1.5 KiB"), (5 << 40, "5.0 TiB")]
)
def test_bytes_are_shown_for_people(count: int, text: str) -> None:
    assert sizes.size_text(count) == text
