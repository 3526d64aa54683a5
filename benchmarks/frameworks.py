"""Celery on Nexo, Redis and RabbitMQ: the same app, worker and tasks; only the URL differs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.harness import Bench, Contender, Measure, Row
from benchmarks.peers import Server

if TYPE_CHECKING:
    from celery import Celery

TASKS = 2_000
_SYNCED = "fsync before a send is confirmed"
_WITH_RESULTS = f"{_SYNCED}; results: ours in memory, Redis synced, RabbitMQ in its queue"
_PATIENCE_S = 60


def rows() -> list[Row]:
    return [
        _row("Celery, tasks sent one by one and run by 2 processes", _tasks, _SYNCED),
        _row("the same, waiting for each task's result", _results, _WITH_RESULTS),
    ]


def _row(name: str, measure: Callable[[Bench, Server], Measure], durability: str) -> Row:
    return Row(
        name, "task/s",
        ours=Contender("nexo", lambda bench: measure(bench, bench.nexo())),
        peers=[
            Contender("redis", lambda bench: measure(bench, bench.redis("always"))),
            Contender("rabbitmq", lambda bench: measure(bench, bench.rabbitmq())),
        ],
        bar=1.0, durability=durability, slow=True,
    )  # fmt: skip


def _tasks(bench: Bench, server: Server) -> Measure:
    """Send tasks and wait until all have run; each leaves a byte."""
    app, marks = _app(server.url), server.folder / "marks"
    marks.touch()
    bench.enter(_worker(server))
    tick, count = app.tasks["benchmarks.celery_app.tick"], bench.scaled(TASKS)

    def run(count: int) -> float:
        before, start_s = marks.stat().st_size, time.perf_counter()
        for _ in range(count):
            tick.delay(str(marks))
        while marks.stat().st_size < before + count:
            if time.perf_counter() - start_s > _PATIENCE_S:
                raise TimeoutError(f"{count} tasks were not done in {_PATIENCE_S} s")
            time.sleep(0.005)
        return count / (time.perf_counter() - start_s)

    run(1)  # once it is done, the worker has started
    return lambda: run(count)


def _results(bench: Bench, server: Server) -> Measure:
    """Send tasks and wait for the result of each."""
    app = _app(server.url)
    bench.enter(_worker(server))
    double, count = app.tasks["benchmarks.celery_app.double"], bench.scaled(TASKS)

    def run(count: int) -> float:
        start_s = time.perf_counter()
        sent = [double.delay(number) for number in range(count)]
        assert [each.get(timeout=_PATIENCE_S) for each in sent] == [2 * n for n in range(count)]
        return count / (time.perf_counter() - start_s)

    run(1)
    return lambda: run(count)


def _app(url: str) -> Celery:
    from benchmarks.celery_app import make_app  # noqa: PLC0415 - Celery is an extra

    return make_app(url)


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
