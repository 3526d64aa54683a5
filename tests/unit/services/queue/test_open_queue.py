"""A queue whose writes the disk refuses."""

from __future__ import annotations

import pytest

from nexo.brokers.queue.jobs import NewJobs
from nexo.errors import DiskFailed, DiskFull, OutcomeUnknown
from nexo.model.blocks import pack_block
from nexo.services.queue.open_queue import OpenQueue
from tests.memory_files import MemoryFiles
from tests.unit.brokers.queue.desk import Desk


def push(queue: OpenQueue, value: bytes, *, replace: bool = False) -> None:
    jobs = NewJobs(1, pack_block([value]), dedup_keys=["k"], replace=replace)
    queue.push(jobs, 0)


def test_what_replaced_a_job_stays_also_after_a_push_that_added_nothing() -> None:  # SPEC D2, I7
    """The number that such a push did not use is the next one's."""
    desk = Desk(MemoryFiles())
    desk.client().create("q")
    queue = desk.service.registry.find("q")
    push(queue, b"old")
    queue.write(0)
    push(queue, b"again")
    push(queue, b"new", replace=True)
    queue.undo(DiskFull("no room"))
    queue.write(0)
    assert queue.engine.ledger.open_jobs == 1
    assert queue.values.one(1)[0] == b"new"


def test_a_push_after_one_of_unknown_outcome_is_certainly_refused() -> None:  # FINDINGS T22
    """Nothing of it is written before the disk takes what came before."""
    desk = Desk(MemoryFiles())
    desk.client().create("q")
    queue = desk.service.registry.find("q")
    push(queue, b"unclear")
    queue.undo(OutcomeUnknown("it could not be undone"))
    with pytest.raises(DiskFailed, match="queue 'q' cannot be written to"):
        push(queue, b"refused")
    queue.write(0)
    push(queue, b"taken")
    assert queue.engine.ledger.open_jobs == 1
