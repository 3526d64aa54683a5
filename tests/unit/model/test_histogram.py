"""Durations are counted in buckets that double, and quantiles are read from them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nexo.model.histogram import BOUNDS_S, Histogram, quantile_s

MS = 1_000_000


def test_each_duration_falls_into_the_bucket_of_its_bound() -> None:
    histogram = Histogram()
    for bound in BOUNDS_S:
        histogram.add(int(bound * 1e9) - 1)
        histogram.add(int(bound * 1e9))
    assert histogram.buckets() == [1, *[2] * (len(BOUNDS_S) - 1), 1]


def test_a_count_adds_and_a_negative_one_takes_back() -> None:
    histogram = Histogram()
    histogram.add(5 * MS, 1_000)
    histogram.add(5 * MS, -999)
    assert (sum(histogram.buckets()), histogram.total_ns) == (1, 5 * MS)


@given(st.lists(st.integers(10_000, 10**10), min_size=1), st.sampled_from([0.5, 0.9, 0.99, 1.0]))
def test_a_quantile_is_right_within_its_bucket(took_ns: list[int], share: float) -> None:
    histogram = Histogram()
    for each in took_ns:
        histogram.add(each)
    rank = max(0, -(-int(share * 100) * len(took_ns) // 100) - 1)
    exact_s = sorted(took_ns)[rank] / 1e9
    found_s = quantile_s(histogram.buckets(), share)
    assert found_s is not None
    assert exact_s / 2 <= found_s <= exact_s * 2


def test_of_nothing_there_is_no_quantile() -> None:
    assert quantile_s(Histogram().buckets(), 0.99) is None


def test_a_status_says_what_half_and_nearly_all_stay_below() -> None:
    histogram = Histogram()
    histogram.add(MS, 98)
    histogram.add(1_000 * MS, 2)
    status = histogram.status()
    assert (sum(status["buckets"]), status["sum_s"]) == (100, pytest.approx(2.098))
    assert 0.5 < status["p50_ms"] < 1.05
    assert 500 < status["p99_ms"] < 1_100


def test_the_quantile_of_equal_durations_lies_in_their_bucket() -> None:
    histogram = Histogram()
    histogram.add(3 * MS, 100)
    p50, p99 = (quantile_s(histogram.buckets(), share) for share in (0.5, 0.99))
    assert p50 == pytest.approx(0.003, rel=0.05)
    assert p99 == pytest.approx(0.00417, rel=0.05)
