"""Rates of topics, from one look to the next."""

from nexo.admin.watching.history import TopicRates


def test_a_rate_is_what_came_between_two_looks() -> None:
    rates = TopicRates()
    assert rates.looked({"a": 100}, 10.0) == {}
    assert rates.looked({"a": 120, "new": 4}, 12.0) == {"a": 10.0, "new": 2.0}


def test_looks_at_almost_the_same_time_share_their_rates() -> None:
    rates = TopicRates()
    rates.looked({"a": 100}, 10.0)
    first = rates.looked({"a": 110}, 12.0)
    assert rates.looked({"a": 111}, 12.1) == first


def test_a_long_pause_begins_anew() -> None:
    rates = TopicRates()
    rates.looked({"a": 100}, 10.0)
    assert rates.looked({"a": 110}, 100.0) == {}
    assert rates.looked({"a": 112}, 102.0) == {"a": 1.0}
