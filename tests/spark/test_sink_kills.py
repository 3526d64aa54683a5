"""An executor is killed while Spark writes into a stream, after a shuffle: no row is lost (F8).

``SOAK=1 pytest -s tests/spark/test_sink_kills.py`` kills in ten batch and in ten streaming writes,
each at another moment, and prints what was stored at the kill and in the end.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import nexo
from nexo import testing

SOAK = bool(os.environ.get("SOAK"))
ROWS = 200_000
BUSY_S = 900

JOB = """
import os, sys
from pyspark_nexo import session

url, rows, kind, folder = sys.argv[1:]
conf = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1",
        "spark.executor.memory": "1g", "spark.sql.shuffle.partitions": "8",
        "spark.executor.extraJavaOptions": os.environ["SPARK_SUBMIT_OPTS"]}  # to start quickly
spark = session("local-cluster[2,1,1024]", conf=conf)
if kind == "batch":
    shuffled = spark.range(0, int(rows), 1, 8).selectExpr("cast(id as string) value")
    shuffled = shuffled.repartition(8).sortWithinPartitions("value")
    shuffled.write.format("nexo").options(url=url, stream="log").mode("append").save()
else:
    source = spark.readStream.format("nexo").options(url=url, stream="source").load()
    shuffled = source.selectExpr("cast(value as string) value").repartition(8)
    writing = shuffled.writeStream.format("nexo").options(url=url, stream="log")
    writing = writing.option("checkpointLocation", folder).trigger(availableNow=True)
    writing.start().awaitTermination()
print("written")
spark.stop()
"""


def executors(job: subprocess.Popen[str]) -> list[int]:
    """The processes of a job's executors: its session is its own."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            is_one = b"CoarseGrainedExecutorBackend" in path.read_bytes()
            if is_one and os.getsid(int(path.parent.name)) == job.pid:
                found.append(int(path.parent.name))
        except (OSError, ProcessLookupError):
            continue
    return sorted(found)


@pytest.mark.timeout(BUSY_S)
@pytest.mark.parametrize("number", range(10 if SOAK else 1))
@pytest.mark.parametrize("kind", ["batch", "stream"])
def test_no_row_is_lost(served: testing.Process, tmp_path: Path, kind: str, number: int) -> None:
    with nexo.connect(served.url) as client:
        log = client.stream("log").create()
        values = [str(n) for n in range(ROWS)]
        client.stream("source").create(partitions=2).publish_many(values)
        command = [sys.executable, "-c", JOB, served.url, str(ROWS), kind, str(tmp_path / "at")]
        job = subprocess.Popen(
            command, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            start_new_session=True,
        )  # fmt: skip
        try:
            while job.poll() is None and not log.info().partitions[0].next_offset:
                time.sleep(0.02)
            time.sleep(0.05 * number)
            running, before = executors(job), log.info().partitions[0].next_offset
            assert running, "nothing was killed"
            os.kill(running[number % len(running)], signal.SIGKILL)
            written, said = job.communicate(timeout=BUSY_S - 100)
        finally:
            if job.poll() is None:
                os.killpg(job.pid, signal.SIGKILL)
                job.communicate()
        assert written.split() == ["written"], said[-3000:]
        stored = [record.value for record in log.read()]
        lost, twice = set(values) - set(stored), len(stored) - len(set(stored))
        print(  # noqa: T201 - the figures are to be seen
            f"\n{kind} {number}: killed with {before:,} of {ROWS:,} rows stored; "
            f"in the end {len(stored):,}, of them {twice:,} again, lost {len(lost)}"
        )
        assert set(stored) == set(values)
