"""The same job on a real cluster: a master and workers from the pip package, in processes."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import nexo
from nexo import testing
from nexo.lake.catalog import Lake
from nexo.lake.settings import LakeSettings
from nexo.server.embedded import free_port
from pyspark_nexo.java import find_java

SOAK = bool(os.environ.get("SOAK"))
ROWS = 5_000_000 if SOAK else 100_000
_READY_S = 40.0

JOB = """
import sys
from pathlib import Path
from nexo.lake.catalog import Lake
from nexo.lake.settings import LakeSettings
from pyspark_nexo import session
from pyspark_nexo.pipeline import Pipeline

master, url, folder = sys.argv[1:]
conf = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1",
        "spark.executor.memory": "1g", "spark.cores.max": "2"}
spark = session(master, conf=conf)
print("taken", Pipeline(spark, Lake(LakeSettings(Path(folder))), url).run_once())
frame = spark.read.format("nexo").options(url=url, stream="log").load()
print("read", frame.selectExpr("count(distinct partition, offset)").collect()[0][0])
spark.stop()
"""


@pytest.fixture
def master(tmp_path: Path) -> Iterator[str]:
    """A standalone master and two workers."""
    port = free_port()
    spark_class = Path(sys.executable).with_name("spark-class")
    find_java()
    environment = os.environ | {
        "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable,
        "SPARK_WORKER_DIR": str(tmp_path / "work"),
    }  # fmt: skip
    url = f"spark://127.0.0.1:{port}"
    log = tmp_path / "cluster.log"
    running = []

    def start(role: str, *arguments: str) -> None:
        command = [str(spark_class), f"org.apache.spark.deploy.{role}", "--host", "127.0.0.1"]
        command += ["--webui-port", str(free_port()), *arguments]
        with log.open("ab") as file:
            running.append(subprocess.Popen(command, env=environment, stdout=file, stderr=file))

    try:
        start("master.Master", "--port", str(port))
        for _ in range(2):
            start("worker.Worker", "--cores", "1", "--memory", "1g", url)
        _wait_for(log, "Registering worker", 2)
        yield url
    finally:
        for process in running:
            process.terminate()
            process.wait()


def _wait_for(log: Path, text: str, times: int) -> None:
    deadline_s = time.monotonic() + _READY_S
    while log.read_text(errors="replace").count(text) < times:
        if time.monotonic() > deadline_s:
            pytest.fail(f"the cluster did not come up:\n{log.read_text()[-2000:]}")
        time.sleep(0.1)


@pytest.mark.skipif(not SOAK, reason="starts three JVMs more: make soak")
def test_a_standalone_cluster_takes_and_reads_a_stream(
    master: str, served: testing.Process, tmp_path: Path
) -> None:
    with nexo.connect(served.url) as client:
        log = client.stream("log").create(partitions=2, tiering=True)
        for _ in range(ROWS // 50_000):
            log.publish_many([b"x" * 100] * 50_000)
    command = [sys.executable, "-c", JOB, master, served.url, str(tmp_path / "lake")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.stdout.split() == ["taken", str(ROWS), "read", str(ROWS)], done.stderr[-3000:]
    assert Lake(LakeSettings(tmp_path / "lake")).get("log").scan().count() == ROWS
