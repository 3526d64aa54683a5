"""What a queue keeps over restarts, and what its log lets go of (SPEC D7)."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import nexo
from nexo.services.queue import open_queue, values
from nexo.testing import Server
from tests.integration.classic import Classic
from tests.timing import wait_until

KIB = 1024


@pytest.fixture
def small(nexo_server: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """A server whose snapshots, segments and memory are small, so that all of them matter."""
    nexo_server.stop()
    monkeypatch.setattr(open_queue, "TAIL_BYTES", 64 * KIB)
    nexo_server._given["segment_bytes"] = 16 * KIB
    nexo_server.start()
    yield nexo_server
    nexo_server.stop()


def log_bytes(server: Server, queue: str) -> int:
    folder: Path = server.data_dir / "queue" / queue
    return sum(file.stat().st_size for file in folder.iterdir())


def restart(server: Server, *, crash: bool) -> None:
    if crash:
        server.crash()
    else:
        server.stop()
    server.start()


@pytest.mark.parametrize("crash", [True, False])
def test_everything_survives_a_restart(nexo_server: Server, crash: bool) -> None:
    with nexo.Client(nexo_server.url) as client:
        queue = client.queue("q").create(
            max_retries=1, backoff="fixed", backoff_delay="1h", result_ttl="1h", fair=True
        )
        queue.push_many(["done", "retried", "dead", "held", "left"], keys=list("aaabb"))
        queue.push("later", delay=0.5)
        queue.push("unique", dedup_key="k")
        queue.cron.set("nightly", "0 3 * * *", 1)
        jobs = {job.value: job for job in queue.pop(4)}
        assert set(jobs) == {"done", "held", "unique", "retried"}
        jobs["done"].result({"ok": True})
        jobs["done"].ack()
        jobs["retried"].nack("one")
        jobs["unique"].reject("bad")
        queue.pause()
    with nexo.Client(nexo_server.url) as client:
        wait_until(lambda: client.queue("q").info().working == 0)
    restart(nexo_server, crash=crash)
    with nexo.Client(nexo_server.url) as client:
        queue = client.queue("q")
        assert queue.info().paused
        assert [(s.name, s.cron) for s in queue.cron.list()] == [("nightly", "0 3 * * *")]
        assert queue.job(jobs["done"].id).result == {"ok": True}
        assert [(d.value, d.cause, d.reason) for d in queue.dlq.peek()] == [
            ("unique", "rejected", "bad")
        ]
        assert {(s.value, s.attempts) for s in queue.scheduled.list()} >= {("retried", 1)}
        queue.resume()
        got = {job.value: job.attempt for job in queue.pop(10)}
        got |= (
            {job.value: job.attempt for job in queue.pop(10, wait=5)} if "later" not in got else {}
        )
        # The one that was held is presumed to have begun (SPEC D5), and is free at once (D8).
        assert got == {"dead": 1, "held": 2, "left": 1, "later": 1}
        assert queue.push("again", dedup_key="k") != jobs["unique"].id


def test_a_finished_job_leaves_nothing_in_the_log(small: Server) -> None:
    with nexo.Client(small.url) as client:
        queue = client.queue("q").create(persistence="file_async")
        for _ in range(40):
            queue.push_many([b"x" * 1_000] * 20)
            queue.pop(20).ack()
        grown = log_bytes(small, "q")
    assert grown < 250 * KIB, "the log of 800 KB must have been dropped"
    restart(small, crash=True)
    with nexo.Client(small.url) as client:
        queue = client.queue("q")
        info = queue.info()
        assert (info.waiting, info.pushed_total, info.finished_total) == (0, 800, 800)
        assert not queue.pop()


def test_one_old_job_does_not_hold_the_whole_log(small: Server) -> None:
    with nexo.Client(small.url) as client:
        queue = client.queue("q").create(persistence="file_async", max_retries=0)
        queue.push_many(["dead", "later"])
        dead = queue.pop(1)[0]
        dead.reject("stuck")
        queue.push("much later", delay="1h")
        for _ in range(100):
            queue.push_many([b"x" * 1_000] * 20, priority=9)
            queue.pop(20).ack()
        assert log_bytes(small, "q") < 400 * KIB, "2 MB were written"
    for crash in (True, False):
        restart(small, crash=crash)
        with nexo.Client(small.url) as client:
            queue = client.queue("q")
            assert [d.value for d in queue.dlq.peek()] == ["dead"]
            assert [s.value for s in queue.scheduled.list()] == ["much later"]
            assert [w.value for w in queue.peek()] == ["later"]


def test_values_that_do_not_fit_in_memory_are_read_from_the_log(
    small: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    with nexo.Client(small.url) as client:
        queue = client.queue("q").create(persistence="file_async")
        _shrink_memory(small, 10 * KIB)
        expected: list[Any] = []
        for n in range(50):
            some = [f"{n}-{i}-" + "x" * 100 for i in range(40)]
            queue.push_many(some)
            expected += some
        for _ in range(100):
            queue.push("single")
        got: list[Any] = []
        while jobs := queue.pop(33):
            got += jobs.values()
            jobs.ack()
    assert got == [*expected, *["single"] * 100]


def _shrink_memory(server: Server, free_bytes: int) -> None:
    assert server._server is not None
    service: Any = server._server.host.services[nexo.model.Broker.QUEUE]
    service.registry._budget.free_bytes = free_bytes
    assert free_bytes < values.MEMORY_BYTES


def test_delayed_jobs_fall_due_on_time_after_a_restart(nexo_server: Server) -> None:  # SPEC D2
    with nexo.Client(nexo_server.url) as client:
        client.queue("q").create().push("later", delay=0.6)
    pushed = time.monotonic()
    restart(nexo_server, crash=True)
    up = time.monotonic()
    with nexo.Client(nexo_server.url) as client:
        assert client.queue("q").pop(wait=20).values() == ["later"]
    assert time.monotonic() - pushed >= 0.5
    assert time.monotonic() - max(up, pushed + 0.6) < 5


def test_a_deleted_queue_stays_deleted(nexo_server: Server) -> None:
    with nexo.Client(nexo_server.url) as client:
        client.queue("gone").create().push(1)
        client.queue("gone").delete()
        client.queue("kept").create()
    restart(nexo_server, crash=True)
    with nexo.Client(nexo_server.url) as client:
        assert client.queues() == ["kept"]
    assert sorted(p.name for p in (nexo_server.data_dir / "queue").iterdir()) == ["kept"]


def test_a_pop_carries_no_more_than_a_few_megabytes(nexo_server: Server) -> None:
    with nexo.Client(nexo_server.url) as client:
        queue = client.queue("q").create(persistence="file_async")
        queue.push_many([b"x" * 1_000_000] * 30)
        sizes = []
        while jobs := queue.pop(10_000):
            sizes.append(len(jobs))
            assert [job.attempt for job in jobs] == [1] * len(jobs)
            jobs.ack()
    assert sum(sizes) == 30
    assert max(sizes) < 16


def flip(path: Path, marker: bytes) -> None:
    """Damage two bytes of the file, more than is put right, in ``marker`` and next to it."""
    data = bytearray(path.read_bytes())
    at = data.index(marker)
    for place in (at, at + len(marker)):
        data[place] ^= 1
    path.write_bytes(data)


def test_a_damaged_value_dies_alone(small: Server) -> None:  # SPEC E6
    with nexo.Client(small.url) as client:
        queue = client.queue("q").create(persistence="file_async")
        _shrink_memory(small, 0)
        for name in ("first", "second", "third"):
            queue.push_many([f"{name}-{n}" for n in range(3)])
        flip(next((small.data_dir / "queue" / "q").glob("*.log")), b"second-1")
        assert queue.pop(100).values() == [f"{name}-{n}" for name in ("first", "third")
                                           for n in range(3)]  # fmt: skip
        letters = queue.dlq.peek()
        assert len(letters) == 3
        assert {letter.value for letter in letters} == {None}
        assert all(letter.reason.startswith("damaged: ") for letter in letters)
    with Classic("127.0.0.1", small.port) as old:
        total, found = old.q_peek_dlq("q")
        assert (total, [value for _, value, *_ in found]) == (3, [None] * 3)


def test_a_queue_with_a_damaged_log_serves_the_rest_and_says_so(nexo_server: Server) -> None:
    """F1."""
    with nexo.Client(nexo_server.url) as client:
        for name in ("bad", "good"):
            queue = client.queue(name).create()
            for value in ("first", "second", "third"):
                queue.push(value)
    nexo_server.stop()
    log = next((nexo_server.data_dir / "queue" / "bad").glob("*.log"))
    flip(log, b"first")
    nexo_server.start()
    with nexo.Client(nexo_server.url) as client:
        (loss,) = client.queue("bad").info().losses
        assert "damaged" in loss
        assert client.queue("bad").pop(5).values() == ["second", "third"]
        assert client.queue("good").info().losses == []
        assert client.queue("good").pop(5).values() == ["first", "second", "third"]
    restart(nexo_server, crash=False)
    with nexo.Client(nexo_server.url) as client:
        assert client.queue("bad").pop(5).values() == ["second", "third"]


@pytest.mark.parametrize("crash", [True, False])
@pytest.mark.parametrize("how", ["purge", "ack", "all but one"])
def test_disk_space_comes_back_when_a_queue_is_drained(
    small: Server, how: str, crash: bool
) -> None:  # SPEC I7: space returns though nothing is pushed
    with nexo.Client(small.url) as client:
        queue = client.queue("q").create()
        queue.push_many([bytes(4 * KIB)] * 100)
        assert log_bytes(small, "q") > 400 * KIB
        if how == "purge":
            assert queue.purge() == 100
        else:
            jobs = queue.pop(100)
            for job in jobs[: 99 if how == "all but one" else 100]:
                job.ack()
        left = 1 if how == "all but one" else 0
        assert log_bytes(small, "q") < 64 * KIB
        queue.push("last")
        restart(small, crash=crash)
        assert [len(job.value) for job in queue.pop(10, wait=5)] == [4 * KIB] * left + [4]
