"""Deleting a queue: whole, or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from nexo.errors import NotFound, Unavailable
from nexo.model.blocks import id_text
from nexo.protocol.frames import pack_str
from nexo.protocol.ops import Op
from nexo.protocol.queue import JobRequest, PopJobs, encode
from tests.memory_files import MemoryFiles
from tests.unit.brokers.queue.desk import START_MS, Desk


class Refusing(MemoryFiles):
    """Refuses to rename while told to."""

    refuses = False

    def rename(self, source: Path, target: Path) -> None:
        if self.refuses:
            raise OSError(5, "Input/output error")
        super().rename(source, target)


def test_a_queue_whose_folder_cannot_be_renamed_stays_and_works() -> None:
    """F14: it was forgotten before the rename, which may fail."""
    files = Refusing()
    peer = Desk(files).client()
    peer.create("q")
    peer.push_many("q", [b"\0a"])
    files.refuses = True
    with pytest.raises(Unavailable, match="not deleted"):
        peer.call(Op.Q_DELETE, pack_str("q"))
    files.refuses = False
    peer.push_many("q", [b"\0b"])
    assert list(peer.pop("q")[1].values()) == [b"\0a", b"\0b"]
    peer.call(Op.Q_DELETE, pack_str("q"))
    with pytest.raises(NotFound):
        peer.info("q")
    assert not len(Desk(files).service.registry)


def test_deleting_answers_whoever_waits_for_jobs_or_for_a_jobs_end() -> None:
    desk = Desk(MemoryFiles())
    peer = desk.client()
    peer.create("q")
    peer.create("idle")
    peer.push_many("q", [b"\0a"])
    asked = JobRequest("q", id_text(START_MS, 0), 60_000)
    watch = peer.send(Op.Q_JOB, encode(asked))
    pop = peer.send(Op.Q_POP, encode(PopJobs("idle", 1, 60_000)))
    desk.runtime.end_turn()
    assert not peer.replies
    for name in ("q", "idle"):
        peer.call(Op.Q_DELETE, pack_str(name))
    assert isinstance(peer.replies[watch], NotFound)
    assert isinstance(peer.replies[pop], NotFound)


def test_the_end_of_one_job_answers_its_watchers_and_nobody_else() -> None:
    desk = Desk(MemoryFiles())
    peer = desk.client()
    peer.create("q")
    peer.push_many("q", [b"\0a"] * 3)
    watches = [
        peer.send(Op.Q_JOB, encode(JobRequest("q", id_text(START_MS, job), 60_000)))
        for job in (0, 1, 1)
    ]
    token, _ = peer.pop("q")
    peer.settle("q", token, jobs=[1])
    assert [watch in peer.replies for watch in watches] == [False, True, True]
    assert desk.service.registry.find("q").engine.watched.jobs == {0}
    desk.service.cancel(peer, watches[0])
    assert watches[0] in peer.replies
    assert not desk.service.registry.find("q").engine.watched.jobs
