"""The last hour of a number."""

from nexo.admin.watching.history import Rate, Series


def test_only_the_newest_points_are_kept() -> None:
    series = Series(3)
    for value in range(5):
        series.add(value)
    assert series.tail(10) == [2, 3, 4]
    assert series.last == 4


def test_means_cover_every_point_and_end_with_the_newest() -> None:
    series = Series()
    for value in (9, 1, 3, 5, 7):
        series.add(value)
    assert series.means(5, 2) == [5.0, 5.0]
    assert series.means(4, 2) == [2.0, 6.0]
    assert series.means(60, 60) == [9, 1, 3, 5, 7]
    assert Series().means(60, 60) == []


def test_gaps_stay_gaps() -> None:
    series = Series()
    for value in (None, None, 4, None):
        series.add(value)
    assert series.means(4, 2) == [None, 4.0]


def test_a_counter_becomes_a_rate_and_survives_a_restart() -> None:
    rate = Rate(Series())
    for second, count in enumerate([100, 160, None, 180, 30]):
        rate.add(count, float(second))
    assert rate.series.tail(5) == [0.0, 60.0, None, 10.0, 30.0]


def test_a_reading_may_stand_for_several_seconds() -> None:
    series = Series(4)
    rate = Rate(series)
    rate.add(0, 0.0)
    rate.add(30, 3.0, 3)
    assert series.tail(10) == [0.0, 10.0, 10.0, 10.0]
