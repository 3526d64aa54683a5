"""Executors and whole jobs die while Spark writes into a stream: rows are there once (F8, H1)."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

import nexo
from nexo import testing
from nexo.lake.settings import LakeSettings
from nexo.lake.writing.staging import StagingPlace, staging_of
from tests.spark.killed_jobs import BUSY_S, CLUSTER, executors, finish, started
from tests.timing import wait_until

SOAK = bool(os.environ.get("SOAK"))
ROWS = 200_000 if SOAK else 20_000
POINTS = [
    "before the staging", "staged", "before the publishing", "published", "before the commit",
    "committed", "cleaned",
]  # fmt: skip
KILLED_AT = [(point, nth) for point in POINTS for nth in (1, 2, 3)] if SOAK else [("committed", 1)]


def fill(client: nexo.Client, count: int = ROWS, *outs: str) -> list[str]:
    """Streams that the jobs read, and write into; returns what is to be written."""
    values = [str(n) for n in range(count)]
    for out in outs or ("out",):
        client.stream(out).create(partitions=2)
    client.stream("one").create(partitions=2).publish_many(values)
    client.stream("other").create(partitions=2).publish_many(values[::-1])
    return sorted(values)


def written(client: nexo.Client, name: str = "out") -> list[str]:
    out = client.stream(name)
    found = list[str]()
    for partition in range(2):
        at = 0
        while records := out.read(partition, at):
            found += [record.value for record in records]
            at = records[-1].offset + 1
    return sorted(found)


def staging(served: testing.Process) -> StagingPlace:
    return staging_of(LakeSettings(served.data_dir / "lake"))


@pytest.mark.timeout(BUSY_S)
@pytest.mark.parametrize("number", range(5 if SOAK else 1))
@pytest.mark.parametrize("scenario", ["batch", "shuffle"])
def test_an_executor_that_is_killed_loses_and_doubles_no_row(
    served: testing.Process, tmp_path: Path, scenario: str, number: int
) -> None:
    with nexo.connect(served.url) as client:
        values = fill(client)
        job = started(served, tmp_path, scenario, CLUSTER, rows=ROWS)
        place = staging(served)
        wait_until(lambda: job.poll() is not None or place.files(), 300, "nothing was staged")
        time.sleep(0.1 * number)
        running = executors(served)
        assert running, finish(job)
        os.kill(running[number % len(running)], signal.SIGKILL)
        said = finish(job)
        assert "written" in said, said[-3000:]
        assert written(client) == values
        place.sweep(grace_s=-1)
        assert place.files() == []


@pytest.mark.timeout(BUSY_S)
@pytest.mark.parametrize(("point", "nth"), KILLED_AT)
@pytest.mark.parametrize("scenario", ["shuffle", "join"] if SOAK else ["join"])
def test_a_job_that_is_killed_anywhere_writes_each_row_once(
    served: testing.Process, tmp_path: Path, scenario: str, point: str, nth: int
) -> None:
    """The promise of `examples/pipeline_windowed_join.py`: each pair once."""
    with nexo.connect(served.url) as client:
        values = fill(client)
        job = started(served, tmp_path, scenario, "local[2]", (point, nth), rows=ROWS)
        said = finish(job)
        assert "written" not in said
        assert job.returncode == -signal.SIGKILL, said[-3000:]
        said = finish(started(served, tmp_path, scenario, "local[2]", rows=ROWS))
        assert "written" in said, said[-3000:]
        assert written(client) == values
        staging(served).sweep(grace_s=-1)
        assert staging(served).files() == []
