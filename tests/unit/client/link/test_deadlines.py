"""Timeouts found by age and by the request's own deadline, on a clock of numbers."""

from __future__ import annotations

from concurrent.futures import Future

from nexo.client._async.link.deadlines import MAX_ID, RequestDeadlines


def waiting(*ids: int) -> dict[int, tuple[Future[None]]]:
    return {request_id: (Future(),) for request_id in ids}


def test_requests_older_than_the_default_timeout_are_overdue() -> None:
    deadlines = RequestDeadlines(timeout_s=8.0)
    table = waiting(1, 2)
    assert deadlines.overdue(table, last_id=2, now_s=0.0) == []
    table |= waiting(3)
    assert deadlines.overdue(table, last_id=3, now_s=1.0) == []
    assert deadlines.overdue(table, last_id=3, now_s=8.0) == [1, 2]


def test_a_request_is_never_overdue_before_its_time() -> None:
    deadlines = RequestDeadlines(timeout_s=8.0)
    deadlines.overdue(waiting(), last_id=0, now_s=0.0)
    table = waiting(1)
    assert deadlines.overdue(table, last_id=1, now_s=7.9) == []
    assert deadlines.overdue(table, last_id=1, now_s=15.0) == []
    assert deadlines.overdue(table, last_id=1, now_s=15.9) == [1]


def test_a_deadline_of_its_own_goes_before_the_default_either_way() -> None:
    deadlines = RequestDeadlines(timeout_s=8.0)
    table = waiting(1, 2)
    deadlines.set(1, 2.0)
    deadlines.set(2, 100.0)
    assert deadlines.overdue(table, last_id=2, now_s=0.0) == []
    assert deadlines.overdue(table, last_id=2, now_s=2.0) == [1]
    table[1][0].cancel()
    assert deadlines.overdue(table, last_id=2, now_s=50.0) == []
    assert deadlines.overdue(table, last_id=2, now_s=100.0) == [2]


def test_answered_and_given_up_requests_are_left_alone() -> None:
    deadlines = RequestDeadlines(timeout_s=8.0)
    table = waiting(1, 2, 3)
    deadlines.set(2, 1.0)
    deadlines.overdue(table, last_id=3, now_s=0.0)
    table[1][0].cancel()
    del table[2]
    assert deadlines.overdue(table, last_id=3, now_s=9.0) == [3]


def test_age_is_judged_across_the_wrap_of_the_id() -> None:
    deadlines = RequestDeadlines(timeout_s=8.0)
    table = waiting(MAX_ID - 1, MAX_ID, 1)
    assert deadlines.overdue(table, last_id=1, now_s=0.0) == []
    table |= waiting(2)
    assert deadlines.overdue(table, last_id=2, now_s=8.0) == [MAX_ID - 1, MAX_ID, 1]


def test_the_next_look_is_at_the_nearest_deadline_or_after_a_fraction_of_the_timeout() -> None:
    deadlines = RequestDeadlines(timeout_s=8.0)
    assert deadlines.next_s(10.0) == 11.0
    deadlines.set(3, 30.0)
    assert deadlines.next_s(10.0) == 11.0, "a long poll delays the timeouts of others"
    deadlines.set(1, 10.2)
    deadlines.set(2, 10.1)
    assert deadlines.next_s(10.0) == 10.1
