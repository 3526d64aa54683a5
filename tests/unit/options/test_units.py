"""Durations and sizes as people write and read them."""

from __future__ import annotations

import pytest

from nexo.errors import InvalidInput
from nexo.options.units import duration_ms, duration_text, size_bytes, size_text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0ms", 0),
        ("250ms", 250),
        ("30s", 30_000),
        ("5m", 300_000),
        (" 7d ", 604_800_000),
        ("7 d", 604_800_000),
        ("1.5h", 5_400_000),
        ("0.0001s", 1),
        ("0", 0),
    ],
)
def test_a_duration_is_a_number_and_a_unit(text: str, expected: int) -> None:  # SPEC G2
    assert duration_ms(text) == expected


@pytest.mark.parametrize("text", ["", "7", "d", "-1s", "1.h", "7w", "1h30m", "٣s"])
def test_anything_else_is_no_duration(text: str) -> None:
    with pytest.raises(InvalidInput, match="duration"):
        duration_ms(text)


@pytest.mark.parametrize(("unit", "expected"), [("ms", 8), ("s", 7_500)])
def test_a_bare_number_has_the_unit_that_its_source_says(unit: str, expected: int) -> None:
    assert duration_ms("7.5", unit) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0", 0),
        ("1000", 1_000),
        ("1k", 1_024),
        ("2 KiB", 2_048),
        ("1MB", 1024**2),
        ("3g", 3 << 30),
        ("1_000", 1_000),
    ],
)
def test_sizes_are_in_powers_of_1024(text: str, expected: int) -> None:
    assert size_bytes(text) == expected


@pytest.mark.parametrize("text", ["", "-1", "1.5g", "one", "1 x"])
def test_a_size_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput):
        size_bytes(text)


@pytest.mark.parametrize(
    ("length_ms", "text"),
    [
        (0, "0s"),
        (0.5, "0.5ms"),
        (250, "250ms"),
        (2_500, "2.5s"),
        (90_000, "1m 30s"),
        (86_400_000, "1d"),
    ],
)
def test_durations_are_shown_for_people(length_ms: float, text: str) -> None:
    assert duration_text(length_ms) == text


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (1_023, "1023 B"), (1_536, "1.5 KiB"), (5 << 40, "5.0 TiB")]
)
def test_bytes_are_shown_for_people(count: int, text: str) -> None:
    assert size_text(count) == text
