"""Small tasks run in a few processes that stay warm; one that dies stops only its own task."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from functools import partial

import pytest

from nexo.errors import Conflict, NexoError

pytest.importorskip("pyspark")

from pyspark_nexo.warm import TaskLost, WarmWorkers


def _process(padding: bytes = b"") -> bytes:
    return str(os.getpid()).encode() + padding


def _fail(error: Exception) -> bytes:
    raise error


def _end(code: int) -> bytes:
    os._exit(code)


def _chatty(answer: bytes) -> bytes:
    os.write(1, b"aside\n")
    sys.stdout.write("aside\n")
    return answer


def _killed() -> bytes:
    os.kill(os.getpid(), signal.SIGKILL)
    return b""


@pytest.fixture
def workers() -> Iterator[WarmWorkers]:
    found = WarmWorkers()
    yield found
    found.close()


def test_tasks_run_in_two_processes_that_are_used_again(workers: WarmWorkers) -> None:
    first = set(workers.run([_process] * 8)) | set(workers.run([_process] * 8))
    assert 1 <= len(first) <= 2
    assert os.getpid() not in {int(each) for each in first}
    assert workers.run([]) == []


def test_large_tasks_and_answers_pass_whole(workers: WarmWorkers) -> None:
    padding = b"x" * 3_000_000
    found = workers.run([partial(_process, padding)] * 3)
    assert [len(each) > len(padding) and each.endswith(padding) for each in found] == [True] * 3


def test_an_error_is_raised_and_the_process_goes_on(workers: WarmWorkers) -> None:
    with pytest.raises(Conflict, match="taken"):
        workers.run([partial(_fail, Conflict("taken"))])
    with pytest.raises(NexoError, match="ValueError: odd"):
        workers.run([partial(_fail, ValueError("odd"))])
    assert workers.run([_process])


def test_what_a_task_prints_is_not_its_answer(workers: WarmWorkers) -> None:
    assert workers.run([partial(_chatty, b"answer")]) == [b"answer"]


@pytest.mark.parametrize("death", [_killed, partial(_end, 3), partial(_end, 0)])
def test_a_process_that_dies_loses_only_its_task(workers: WarmWorkers, death: object) -> None:
    with pytest.raises(TaskLost, match="a task was lost"):
        workers.run([death])  # type: ignore[list-item]
    assert len(workers.run([_process] * 4)) == 4


def test_a_process_without_work_ends_and_is_started_again() -> None:
    workers = WarmWorkers(count=1, idle_s=0.0)
    try:
        (first,) = workers.run([_process])
        os.waitid(os.P_PID, int(first), os.WEXITED | os.WNOWAIT)
        (second,) = workers.run([_process])
        assert first != second
    finally:
        workers.close()
