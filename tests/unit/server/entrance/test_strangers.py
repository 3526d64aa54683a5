"""Connections that have not introduced themselves: who gives way, and when."""

from __future__ import annotations

from nexo.server.entrance.strangers import Strangers


def test_the_oldest_of_a_full_address_gives_way() -> None:
    strangers: Strangers[int] = Strangers(per_address=2)
    assert [strangers.enter(number, "there", 0) for number in (1, 2)] == [None, None]
    assert strangers.enter(3, "elsewhere", 0) is None
    assert strangers.enter(4, "there", 0) == 1
    assert 1 not in strangers
    strangers.leave(2)
    assert strangers.enter(5, "there", 0) is None


def test_the_overdue_are_taken_out_oldest_first() -> None:
    strangers: Strangers[int] = Strangers(per_address=10)
    for number in range(5):
        strangers.enter(number, "there", float(number))
    strangers.leave(1)
    assert strangers.overdue(2.0) == [0, 2]
    assert strangers.overdue(2.0) == []
    assert strangers.oldest == 3


def test_many_overdue_are_taken_out_a_few_at_a_time() -> None:
    strangers: Strangers[int] = Strangers(per_address=10)
    for number in range(5):
        strangers.enter(number, "there", 0)
    assert [strangers.overdue(1.0, 2) for _ in range(4)] == [[0, 1], [2, 3], [4], []]


def test_those_known_by_now_are_forgotten() -> None:
    strangers: Strangers[int] = Strangers(per_address=10)
    for number in range(4):
        strangers.enter(number, "there", 0)
    strangers.forget(lambda number: number < 2)
    assert strangers.oldest == 2
    assert len(strangers) == 2
