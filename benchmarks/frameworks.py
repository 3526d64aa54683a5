"""Celery on Nexo, Redis and RabbitMQ: the same app, worker and tasks; only the URL differs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.harness import Bench, Contender, Measure, Row
from benchmarks.peers import Server

TASKS = 2_000
_SYNCED = "fsync before a send is confirmed"
_PATIENCE_S = 60


def rows() -> list[Row]:
    return [
        Row(
            "Celery, tasks sent one by one and run by 2 processes", "task/s",
            ours=Contender("nexo", lambda bench: _tasks(bench, bench.nexo())),
            peers=[
                Contender("redis", lambda bench: _tasks(bench, bench.redis("always"))),
                Contender("rabbitmq", lambda bench: _tasks(bench, bench.rabbitmq())),
            ],
            durability=_SYNCED, slow=True,
        )
    ]  # fmt: skip


def _tasks(bench: Bench, server: Server) -> Measure:
    """Send tasks and wait until all have run; each leaves a byte."""
    from benchmarks.celery_app import make_app  # noqa: PLC0415 - Celery is an extra

    app, marks = make_app(server.url), server.folder / "marks"
    marks.touch()
    bench.enter(_worker(server))
    tick, count = app.tasks["benchmarks.celery_app.tick"], bench.scaled(TASKS)

    def measure() -> float:
        before, start_s = marks.stat().st_size, time.perf_counter()
        for _ in range(count):
            tick.delay(str(marks))
        while marks.stat().st_size < before + count:
            if time.perf_counter() - start_s > _PATIENCE_S:
                raise TimeoutError(f"{count} tasks were not done in {_PATIENCE_S} s")
            time.sleep(0.005)
        return count / (time.perf_counter() - start_s)

    return measure


@contextmanager
def _worker(server: Server) -> Iterator[None]:
    command = [sys.executable, "-m", "celery", "-A", "benchmarks.celery_app", "worker", "-c", "2"]
    with (server.folder / "worker.log").open("wb") as output:
        process = subprocess.Popen(
            command,
            env=os.environ | {"BENCH_CELERY_URL": server.url},
            cwd=Path(__file__).parents[1],
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        yield
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
