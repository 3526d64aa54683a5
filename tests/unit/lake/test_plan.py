"""Ranges of many streams share few tasks of about equal cost (P6)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nexo.errors import Conflict
from nexo.lake.plan import BatchLimits, cost_s, packed, planned_ranges
from nexo.protocol.stream import PartitionInfo

PART = PartitionInfo(start_offset=0, next_offset=9, stable_offset=9, size_bytes=9)


def test_what_another_pipeline_took_beyond_the_target_is_no_lost_record() -> None:
    """``run --once`` stops where the stream ended at its start; others go on (SPEC I4)."""
    assert planned_ranges("log", {0: 7}, [PART], BatchLimits(), [5]) == []
    (planned,) = planned_ranges("log", {0: 3}, [PART], BatchLimits(), [5])
    assert (planned.first, planned.end) == (3, 5)


def test_records_that_no_tier_has_are_noted_though_nothing_new_comes() -> None:
    """Another program rolled the table back after the log had dropped what was tiered."""
    part = PartitionInfo(
        start_offset=0, next_offset=9, stable_offset=9, size_bytes=9, tiered_offset=9, hot_offset=9
    )
    (planned,) = planned_ranges("log", {0: 4}, [part], BatchLimits())
    assert (planned.first, planned.end, planned.gap) == (9, 9, (4, 9))
    assert list(planned.tasks(BatchLimits())) == []
    assert planned_ranges("log", {0: 9}, [part], BatchLimits()) == []
    (planned,) = planned_ranges("log", {}, [part], BatchLimits())
    assert planned.gap == (0, 9)  # or dropped it


def test_a_lake_that_is_ahead_of_the_broker_is_refused() -> None:
    with pytest.raises(Conflict, match="the broker lost records"):
        planned_ranges("log", {0: 10}, [PART], BatchLimits(), [5])


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


def test_a_partition_that_the_broker_lost_is_told() -> None:  # SPEC E1
    with pytest.raises(Conflict, match="partition 1: the lake has it"):
        planned_ranges("log", {0: 3, 1: 4}, [PART], BatchLimits())
