"""Ranges of many streams share few tasks of about equal cost (P6)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from nexo.lake.plan import cost_s, packed


def test_many_small_ranges_share_as_many_tasks_as_run_at_once() -> None:
    tasks = packed([cost_s(1, 100)] * 300, slots=2, task_s=2.0)
    assert sorted(map(len, tasks)) == [150, 150]


def test_a_large_backlog_gets_more_tasks_than_run_at_once() -> None:
    assert len(packed([1.5] * 10, slots=2, task_s=2.0)) == 8


def test_one_range_is_one_task() -> None:
    assert packed([5.0], slots=8, task_s=2.0) == [[0]]


@given(st.lists(st.floats(0.001, 10), min_size=1, max_size=60), st.integers(1, 8))
def test_every_range_is_in_one_task_and_none_is_overloaded(costs: list[float], slots: int) -> None:
    tasks = packed(costs, slots, 2.0)
    assert sorted(number for task in tasks for number in task) == list(range(len(costs)))
    loads = [sum(costs[number] for number in task) for task in tasks]
    assert max(loads) <= sum(costs) / len(tasks) + max(costs) + 1e-6
