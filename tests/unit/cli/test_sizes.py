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


def test_durations_need_a_unit_unless_zero() -> None:
    assert (sizes.duration("0"), sizes.duration("7d")) == (0, 7 * 86_400_000)
    with pytest.raises(click.BadParameter):
        sizes.duration("7")


def test_places_are_words_offsets_or_times() -> None:
    assert sizes.place("end") == "end"
    assert sizes.place("17") == 17
    assert sizes.place("0:5,2:9") == {0: 5, 2: 9}
    assert sizes.place("2026-01-31T12:00") == datetime(2026, 1, 31, 12, tzinfo=UTC)
    assert sizes.place("2026-01-31T12:00+02:00") == datetime(2026, 1, 31, 10, tzinfo=UTC)


def test_an_age_counts_back_from_now() -> None:
    found = sizes.place("2h")
    assert isinstance(found, datetime)
    assert abs(datetime.now(UTC) - timedelta(hours=2) - found) < timedelta(minutes=1)


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (1_023, "1023 B"), (1_536, "1.5 KiB"), (5 << 40, "5.0 TiB")]
)
def test_bytes_are_shown_for_people(count: int, text: str) -> None:
    assert sizes.size_text(count) == text
