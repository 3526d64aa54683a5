"""The checker finds each kind of broken promise, and nothing in a clean history."""

from __future__ import annotations

import pytest

from tests.crash.history import Findings, History


def clean_queue() -> History:
    history = History(acked_items_go=True)
    history.sent(range(10))
    history.confirmed(range(10))
    history.delivered(range(5), "a")
    history.acking(range(5))
    history.acked(range(5), "a")
    history.stored(range(5, 10))
    return history


def clean_stream() -> History:
    history = History(acked_items_go=False)
    history.sent(range(10), "k")
    history.confirmed(range(10), [(0, n) for n in range(10)])
    history.delivered(range(10), "a")
    history.acking(range(10))
    history.acked(range(10), "a")
    history.stored(range(9), [(0, n) for n in range(9)])
    return history


def test_a_clean_history_has_no_findings() -> None:
    assert not clean_queue().findings()
    history = clean_stream()
    history.stored([9], [(0, 9)])
    assert not history.findings()


def test_an_unconfirmed_write_may_be_there_or_not() -> None:
    history = clean_queue()
    history.sent([10, 11])
    history.stored([10])
    assert not history.findings()


def test_an_ack_without_an_answer_may_have_counted_or_not() -> None:
    history = clean_queue()
    history.sent([20, 21])
    history.confirmed([20, 21])
    history.acking([20, 21])
    history.stored([20])
    assert not history.findings()


def test_redelivery_without_an_ack_is_no_duplicate() -> None:
    history = clean_queue()
    history.delivered([7], "a")
    history.delivered([7], "b")
    assert not history.findings()


def test_a_missing_write_is_lost() -> None:
    assert clean_stream().findings() == Findings(lost=1)


@pytest.mark.parametrize("item", [3, 7])
def test_what_comes_back_or_is_there_twice_is_duplicated(item: int) -> None:
    history = clean_queue()
    history.stored([item])
    assert history.findings() == Findings(duplicated=1)


def test_a_delivery_after_a_confirmed_ack_is_duplicated() -> None:
    history = clean_queue()
    history.delivered([3], "b")
    assert history.findings() == Findings(duplicated=1)


def test_what_was_never_sent_is_invented() -> None:
    history = clean_queue()
    history.stored([99])
    assert history.findings() == Findings(invented=1)


def test_order_is_checked_per_key_and_partition() -> None:
    history = History(acked_items_go=False)
    history.sent([1, 3], "a")
    history.sent([2, 4], "b")
    history.stored([2, 1, 4, 3], [(0, 0), (0, 1), (0, 2), (0, 3)])
    assert not history.findings()
    history = History(acked_items_go=False)
    history.sent([1, 2], "a")
    history.stored([2, 1], [(0, 0), (0, 1)])
    assert history.findings() == Findings(reordered=1)


def test_an_offset_used_twice_or_moved_is_found() -> None:
    history = History(acked_items_go=False)
    history.sent([1, 2])
    history.confirmed([1, 2], [(0, 5), (0, 5)])
    history.stored([1, 2], [(0, 5), (0, 6)])
    assert history.findings() == Findings(reused_places=2)


def test_a_gap_in_the_offsets_is_found() -> None:
    history = History(acked_items_go=False)
    history.sent([1, 2])
    history.stored([1, 2], [(0, 0), (0, 2)])
    assert history.findings() == Findings(gaps=1)


def test_a_read_of_an_aborted_item_is_found() -> None:
    history = clean_queue()
    history.sent([50])
    history.aborted([50])
    history.delivered([50], "a")
    assert history.findings() == Findings(aborted_reads=1)


def test_an_ack_accepted_after_the_lease_has_passed_on_is_found() -> None:
    history = clean_queue()
    history.delivered([7], "a")
    history.delivered([7], "b")
    history.acked([7], "a")
    assert history.findings().late_acks == 1
