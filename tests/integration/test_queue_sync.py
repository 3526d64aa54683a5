"""The sync client's queues: the same API, on threads (SPEC K1)."""

from __future__ import annotations

import logging
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import nexo
from nexo.client._sync.queue.jobs import Job
from nexo.client._sync.runtime import spawn
from nexo.errors import LeaseLost, NotFound
from nexo.testing import Server
from tests.timing import wait_until


def test_push_pop_and_ack(client: nexo.Client) -> None:
    queue = client.queue("jobs").create(max_retries=0)
    first = queue.push({"n": 1})
    queue.push_many([2, 3], priority=7)
    jobs = queue.pop(10)
    assert jobs.values() == [2, 3, {"n": 1}]
    assert jobs[2].id == first
    jobs[0].ack()
    jobs[1].nack("no")
    jobs[2].extend(60)
    jobs.ack()
    with pytest.raises(LeaseLost):
        jobs[0].ack()
    (dead,) = queue.dlq.peek()
    assert (dead.value, dead.reason) == (3, "no")
    assert queue.info().finished_total == 2


def test_a_consumer_stops_at_once_though_the_server_is_down(
    nexo_server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "nexo.client")
    with nexo.connect(nexo_server.url, down_wait=60) as client:  # SPEC A5, D3
        consumer = client.queue("jobs").create().subscribe(print)
        nexo_server.crash()
        wait_until(lambda: "queue jobs: cannot connect" in caplog.text)
        assert spawn(consumer.close).join(20)


def test_a_waiting_pop_is_woken(client: nexo.Client) -> None:
    queue = client.queue("jobs").create()
    threading.Timer(0.05, queue.push, ["hello"]).start()
    assert queue.pop(wait=10).values() == ["hello"]


def test_handlers_run_in_threads_and_stop(client: nexo.Client) -> None:  # SPEC D3
    queue = client.queue("jobs").create(max_retries=0, result_ttl=60)
    names: set[str] = set()
    barrier = threading.Barrier(3)

    def handle(job: Job[Any]) -> int:
        names.add(threading.current_thread().name)
        barrier.wait(10)
        if job.value == 2:
            raise RuntimeError("two")
        return int(job.value) * 10

    consumer = queue.subscribe(handle, concurrency=3, wait=20)
    ids = queue.push_many([1, 2, 3])
    assert [queue.result(ids[0]), queue.result(ids[2])] == [10, 30]
    assert queue.job(ids[1], wait=5).reason == "RuntimeError: two"
    start = time.monotonic()
    consumer.close()
    assert time.monotonic() - start < 10
    assert not consumer.running


def test_a_handler_may_stop_its_own_consumer(client: nexo.Client) -> None:  # SPEC D3
    queue = client.queue("jobs").create()
    started = threading.Event()

    def handle(job: Job[Any]) -> None:
        started.wait(10)
        consumer.close()

    queue.push("last")
    consumer = queue.subscribe(handle)
    started.set()
    assert consumer.wait(10)
    assert queue.info().finished_total == 1


def test_a_queue_that_never_was_is_not_found(client: nexo.Client) -> None:
    with pytest.raises(NotFound):
        client.queue("nowhere").push(1)
    assert not client.queue("nowhere").exists()


WORKER = """
import nexo, os, pathlib, sys, time

client = nexo.Client(sys.argv[1])

@client.queue("jobs").worker(concurrency=2)
def handle(job):
    os.write(1, f"start {job.value}\\n".encode())  # two threads: a line is one write
    while not pathlib.Path(sys.argv[2]).exists():
        time.sleep(0.01)

handle.run()
print("bye", flush=True)
client.close()
"""


def test_a_worker_finishes_what_it_runs_on_sigterm(
    client: nexo.Client, url: str, tmp_path: Path
) -> None:
    queue = client.queue("jobs").create(max_retries=0)
    queue.push_many(range(10))
    script, go_on = tmp_path / "worker.py", tmp_path / "go-on"
    script.write_text(WORKER)
    command = [sys.executable, str(script), url, str(go_on)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as worker:
        try:
            assert worker.stdout is not None
            lines = {worker.stdout.readline(), worker.stdout.readline()}
            assert lines == {b"start 0\n", b"start 1\n"}
            worker.send_signal(signal.SIGTERM)
            back = queue.pop(10, wait=10)
            assert [job.attempt for job in back] == [1] * 8, "what has not started comes back"
            go_on.touch()
            assert worker.stdout.readline() == b"bye\n"
            assert worker.wait(10) == 0
        finally:
            worker.kill()
    back.release()
    info = queue.info()
    assert (info.finished_total, info.waiting, info.dead, info.failed_total) == (2, 8, 0, 0)
