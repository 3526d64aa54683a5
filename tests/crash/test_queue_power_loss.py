"""Power loss at every call, and calls that fail: a queue keeps what it confirmed (SPEC D7)."""

from __future__ import annotations

import contextlib
import errno
from pathlib import Path
from typing import Any

import pytest

from nexo.errors import DiskFull, NexoError, RequestTimeout
from nexo.model.queue import NACK
from nexo.protocol.ops import Op
from nexo.protocol.queue import PeekJobs, PopJobs, decode, encode
from nexo.services.queue import open_queue
from tests.faulty_files import FaultyFiles, PowerLoss
from tests.unit.brokers.queue.desk import START_MS, Desk, delivered, push_request

SEEDS = range(8)
FOLDER = Path("/data/queue")


class Told:
    """What the outside world was told."""

    def __init__(self) -> None:
        self.created = False
        self.pushed: set[bytes] = set()
        self.acked: set[bytes] = set()
        self.failed: dict[int, int] = {}


@pytest.fixture(autouse=True)
def small_tails(monkeypatch: pytest.MonkeyPatch) -> None:
    """Snapshots after a few hundred bytes, so that losses fall into them too."""
    monkeypatch.setattr(open_queue, "TAIL_BYTES", 700)


def work(files: FaultyFiles, told: Told) -> None:
    """Push, fail and finish jobs in several rounds."""
    peer = Desk(files, segment_bytes=1_024).client()
    peer.create("q")
    told.created = True
    for number in range(4):
        values = [b"\x01%d-%d" % (number, n) + b"." * 30 for n in range(3)]
        peer.push_many("q", values, priority=number % 2)
        told.pushed.update(values)
        token, jobs = peer.pop("q", 2)
        first, second = jobs
        peer.settle("q", token, NACK, [first])
        told.failed[first] = told.failed.get(first, 0) + 1
        peer.settle("q", token, jobs=[second])
        told.acked.add(jobs[second])


def check(files: FaultyFiles, told: Told) -> None:
    """Recover and look; write, and recover again."""
    desk = Desk(files, START_MS + 1_000, segment_bytes=1_024)
    if desk.service.registry.get("q") is None:
        assert not told.created
        desk.client().create("q")
    peer = desk.client()
    failures = desk.service.registry.find("q").engine.ledger.failures
    for job, count in told.failed.items():
        known = failures.get(job)
        assert known is None or known.count >= count, "an attempt was forgotten"
    token, jobs = peer.pop("q")
    found = list(jobs.values())
    assert len(found) == len(set(found)), "a job is there twice"
    assert told.pushed - told.acked <= set(found), "a confirmed job is lost"
    assert not told.acked & set(found), "an acknowledged job came back"
    if jobs:
        peer.settle("q", token)
    peer.push_many("q", [b"\x01more"])
    again = Desk(files.crash(0), START_MS + 2_000, segment_bytes=1_024).client()
    assert list(again.pop("q")[1].values()) == [b"\x01more"]


def test_every_place_to_lose_power_at() -> None:
    files = FaultyFiles()
    work(files, Told())
    assert any(name.endswith(".snap") for name in files.list(FOLDER / "q")), "no snapshot was made"
    for call in range(1, files.calls + 2):
        for seed in SEEDS:
            broken, told = FaultyFiles(), Told()
            broken.lose_power_at = call
            with contextlib.suppress(PowerLoss):
                work(broken, told)
            try:
                check(broken.crash(seed), told)
            except AssertionError as error:
                pytest.fail(f"power lost at call {call}, outcome {seed}: {error}")


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
def test_every_call_that_can_fail(number: int) -> None:
    files = FaultyFiles()
    work(files, Told())
    for call in range(1, files.calls + 1):
        broken, told = FaultyFiles(), Told()
        broken.fail_call, broken.fail_errno = call, number
        with contextlib.suppress(NexoError, OSError):
            work(broken, told)
        check(broken.crash(0), told)


def test_a_push_the_disk_refused_never_comes_back() -> None:  # SPEC I7
    files = FaultyFiles()
    desk = Desk(files)
    peer = desk.client()
    peer.create("q")
    files.fill()
    for value in (b"\x01a", b"\x01b"):
        with pytest.raises(DiskFull):
            peer.push_many("q", [value])
    assert not peer.pop("q")[1]
    desk.pass_time(1_000)
    peer.push_many("q", [b"\x01c"])
    assert peer.info("q")["waiting"] == 1
    assert list(Desk(files.crash(0)).client().pop("q")[1].values()) == [b"\x01c"]


def test_an_ack_the_disk_refused_is_written_and_confirmed_later() -> None:  # SPEC I7, D7
    files = FaultyFiles()
    desk = Desk(files)
    peer = desk.client()
    peer.create("q")
    peer.push_many("q", [b"\x01a", b"\x01b"])
    token, jobs = peer.pop("q", 1)
    files.fill()
    with pytest.raises(RequestTimeout):
        peer.settle("q", token)
    assert list(Desk(files.crash(0)).client().pop("q")[1].values()) == [b"\x01a", b"\x01b"]
    desk.runtime.end_turn()
    assert not peer.replies, "tried again after a while, not all the time"
    desk.pass_time(1_000)
    assert list(peer.replies.values()) == [b""], "confirmed once it is written"
    assert list(jobs.values()) == [b"\x01a"]
    assert list(Desk(files.restart()).client().pop("q")[1].values()) == [b"\x01b"]


def test_a_job_that_waits_for_the_disk_goes_to_who_waits_for_jobs() -> None:  # SPEC I7, D3
    files = FaultyFiles()
    desk = Desk(files)
    producer, worker = desk.client(), desk.client()
    producer.create("q")
    producer.push_many("q", [b"\x01a"])
    worker.settle("q", worker.pop("q")[0])
    waiting = worker.send(Op.Q_POP, encode(PopJobs("q", 10, 60_000)))
    desk.runtime.end_turn()
    files.fill()
    with pytest.raises(RequestTimeout):
        producer.push_many("q", [b"\x01b"], dedup_keys=["k"], replace=True)
    token, jobs = delivered(worker.replies.pop(waiting))
    assert list(jobs.values()) == [b"\x01b"]
    desk.pass_time(1_000)
    assert len(producer.replies) == 1, "confirmed once it is written"
    worker.settle("q", token)
    assert not Desk(files.restart()).client().pop("q")[1]


@pytest.mark.parametrize("op", ["pop", "peek"])
def test_jobs_can_be_asked_for_while_one_waits_for_the_disk(op: str) -> None:  # SPEC I7, D3
    files = FaultyFiles()
    desk = Desk(files)
    peer = desk.client()
    peer.create("q")
    peer.push_many("q", [b"\x01a"])
    files.fill()
    with pytest.raises(RequestTimeout):
        peer.push_many("q", [b"\x01b"], dedup_keys=["k"], replace=True)
    files.fill()
    if op == "pop":
        assert list(peer.pop("q")[1].values()) == [b"\x01a", b"\x01b"]
    else:
        jobs = decode(peer.call(Op.Q_PEEK, encode(PeekJobs("q"))), list[dict[str, Any]])
        assert [job["value"] for job in jobs] == [b"\x01a", b"\x01b"]


def test_a_pop_gets_no_job_of_a_push_that_is_refused() -> None:  # SPEC I7
    files = FaultyFiles()
    desk = Desk(files)
    peer = desk.client()
    peer.create("q")
    pushing = peer.send(Op.Q_PUSH_MANY, push_request("q", [b"\x01a"]))
    files.fill()
    popping = peer.send(Op.Q_POP, encode(PopJobs("q", 1, 0)))
    files.fill()
    desk.runtime.end_turn()
    assert isinstance(peer.replies[pushing], DiskFull)
    desk.pass_time(0)
    assert peer.replies[popping] is None


def test_a_full_disk_refuses_pushes_and_lets_work_go_on() -> None:  # SPEC I7
    desk = Desk(FaultyFiles())
    peer = desk.client()
    peer.create("q")
    peer.push_many("q", [b"\x01a", b"\x01b"])
    desk.runtime.refuses = DiskFull("full")
    with pytest.raises(DiskFull):
        peer.push_many("q", [b"\x01c"])
    token, jobs = peer.pop("q")
    peer.settle("q", token)
    assert len(jobs) == 2
    desk.runtime.refuses = None
    peer.push_many("q", [b"\x01c"])
    assert peer.info("q")["waiting"] == 1


def test_everything_of_a_turn_is_one_write_and_one_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_queue, "TAIL_BYTES", 1_000_000)
    files = FaultyFiles()
    desk = Desk(files)
    peer = desk.client()
    peer.create("q")
    before = files.calls
    ids = [peer.send(Op.Q_PUSH_MANY, push_request("q", [b"\x01x"])) for _ in range(50)]
    assert not peer.replies, "nothing is confirmed before it is safe"
    desk.runtime.end_turn()
    assert set(peer.replies) == set(ids)
    assert files.calls - before == 2, "one write and one sync"
