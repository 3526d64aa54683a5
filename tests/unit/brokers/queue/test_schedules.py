"""Cron expressions (SPEC D9)."""

from datetime import UTC, datetime

import pytest

from nexo.brokers.queue.schedules import next_after
from nexo.errors import InvalidInput


def ms(text: str) -> int:
    return round(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() * 1_000)


@pytest.mark.parametrize(
    ("cron", "now", "then"),
    [
        ("* * * * *", "2026-01-01 00:00:00", "2026-01-01 00:01"),
        ("* * * * *", "2026-01-01 00:00:59", "2026-01-01 00:01"),
        ("*/15 * * * *", "2026-01-01 10:46", "2026-01-01 11:00"),
        ("5/20 * * * *", "2026-01-01 10:26", "2026-01-01 10:45"),
        ("30 9 * * mon-fri", "2026-01-02 09:30", "2026-01-05 09:30"),
        ("0 0 1 * *", "2026-12-15 00:00", "2027-01-01 00:00"),
        ("0 0 29 2 *", "2026-01-01 00:00", "2028-02-29 00:00"),
        ("0 0 13 * 5", "2026-02-01 00:00", "2026-02-06 00:00"),
        ("0 12 * jan,JUL 7", "2026-02-01 00:00", "2026-07-05 12:00"),
        ("@hourly", "2026-01-01 23:59", "2026-01-02 00:00"),
        ("0 0 * * 1-5/2", "2026-01-01 00:00", "2026-01-02 00:00"),
    ],
)
def test_the_next_time_is_the_first_match_after_now(cron: str, now: str, then: str) -> None:
    assert next_after(cron, ms(now)) == ms(then)


@pytest.mark.parametrize(
    "cron",
    ["", "* * * *", "60 * * * *", "* 24 * * *", "a * * * *", "*/0 * * * *", "5-1 * * * *",
     "* * 0 * *", "* * * 13 *", "* * * * 8", "0 0 30 2 *", "1,,2 * * * *", "-1 * * * *"],
)  # fmt: skip
def test_text_that_makes_no_sense_is_refused(cron: str) -> None:
    with pytest.raises(InvalidInput, match="cron"):
        next_after(cron, 0)


@pytest.mark.parametrize(
    ("cron", "now", "then"),
    [
        ("0 9 * * *", "2026-01-15 00:00", "2026-01-15 08:00"),
        ("0 9 * * *", "2026-07-15 00:00", "2026-07-15 07:00"),
        ("30 2 * * *", "2026-03-28 12:00", "2026-03-29 01:00"),  # skipped by the change to summer
        ("30 2 * * *", "2026-10-24 12:00", "2026-10-25 00:30"),  # repeated by the change back
        ("30 2 * * *", "2026-10-25 00:30", "2026-10-26 01:30"),
    ],
)
def test_times_of_a_zone_follow_its_clocks(cron: str, now: str, then: str) -> None:
    assert next_after(cron, ms(now), "Europe/Rome") == ms(then)


@pytest.mark.parametrize("zone", ["Mars/Base", "../../etc/passwd", "Europe", "a\0b", "x" * 10_000])
def test_a_zone_that_does_not_exist_is_refused(zone: str) -> None:
    with pytest.raises(InvalidInput, match="time zone"):
        next_after("0 0 * * *", 0, zone)
