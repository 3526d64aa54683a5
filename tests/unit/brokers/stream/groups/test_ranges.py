"""Sets and maps of ranges."""

from __future__ import annotations

from nexo.brokers.stream.groups.ranges import RangeMap, RangeSet


def test_touching_and_overlapping_ranges_merge_into_one() -> None:
    ranges = RangeSet([(0, 5), (10, 12)])
    ranges.add(5, 10)
    assert list(ranges) == [(0, 12)]
    ranges.add(3, 20)
    assert list(ranges) == [(0, 20)]


def test_removing_from_the_middle_splits_a_range() -> None:
    ranges = RangeSet([(0, 10)])
    ranges.remove(3, 5)
    assert list(ranges) == [(0, 3), (5, 10)]
    ranges.remove(0, 100)
    assert not ranges


def test_removing_what_is_not_there_changes_nothing() -> None:
    ranges = RangeSet([(5, 6)])
    ranges.remove(0, 5)
    ranges.remove(6, 9)
    assert list(ranges) == [(5, 6)]


def test_memory_goes_by_ranges_not_by_integers() -> None:
    ranges = RangeSet([(0, 10**12)])
    assert len(ranges) == 1
    assert ranges.count() == 10**12
    assert 10**12 - 1 in ranges
    assert 10**12 not in ranges


def test_the_next_gap_is_the_first_integer_outside() -> None:
    ranges = RangeSet([(2, 4), (6, 8)])
    assert [ranges.next_gap(n) for n in (0, 2, 3, 4, 6, 9)] == [0, 4, 4, 4, 8, 9]


def test_gaps_are_counted_and_passed_over() -> None:
    ranges = RangeSet([(2, 4), (6, 8), (8, 9), (15, 20)])
    outside = [n for n in range(40) if n not in ranges]
    for first in range(22):
        for end in range(22):
            assert ranges.missing(first, end) == sum(first <= n < end for n in outside)
        following = [n for n in outside if n >= first]
        assert [ranges.nth_gap(first, n) for n in range(10)] == following[:10]


def test_split_cuts_a_range_into_parts_inside_and_outside() -> None:
    ranges = RangeSet([(2, 4), (6, 8)])
    assert list(ranges.split(3, 7)) == [(3, 4, True), (4, 6, False), (6, 7, True)]


def test_a_new_value_replaces_the_old_one_only_within_its_range() -> None:
    values = RangeMap([(0, 10, "a")])
    values.set(3, 5, "b")
    assert list(values) == [(0, 3, "a"), (3, 5, "b"), (5, 10, "a")]
    values.set(3, 5, "a")
    assert list(values) == [(0, 10, "a")]


def test_cut_returns_what_was_within_the_range() -> None:
    values = RangeMap([(0, 4, 1), (6, 9, 2)])
    assert values.cut(2, 7) == [(2, 4, 1), (6, 7, 2)]
    assert list(values) == [(0, 2, 1), (7, 9, 2)]
    assert values.cut(3, 5) == []


def test_a_run_ends_where_the_value_changes_or_begins() -> None:
    values = RangeMap([(2, 4, 7)])
    assert values.run(0, 9) == (2, None)
    assert values.run(3, 9) == (4, 7)
    assert values.run(4, 9) == (9, None)
