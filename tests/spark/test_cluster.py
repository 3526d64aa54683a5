"""The same job on clusters from the pip package, whose executors are processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import nexo
from nexo import testing
from nexo.lake.catalog import Lake
from nexo.lake.settings import LakeSettings
from nexo.testing import free_port
from pyspark_nexo.java import find_java
from tests.s3_server import S3Server
from tests.timing import wait_until

SOAK = bool(os.environ.get("SOAK"))
ROWS = 5_000_000 if SOAK else 100_000
CHUNK = 50_000
BUSY_S = 900
"""Three JVMs take half a minute to start, but minutes on a machine that does much else."""
_READY_S = 200.0

JOB = """
import os
import sys
from pathlib import Path
from nexo.lake.catalog import Lake
from nexo.lake.settings import LakeSettings
from pyspark_nexo import session
from pyspark_nexo.pipeline import Pipeline

master, url, folder, catalog = sys.argv[1:]
conf = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1",
        "spark.executor.memory": "1g", "spark.cores.max": "2",
        "spark.executor.extraJavaOptions": os.environ["SPARK_SUBMIT_OPTS"]}  # to start quickly
spark = session(master, conf=conf)
print("taken", Pipeline(spark, Lake(LakeSettings(Path(folder), catalog)), url).run_once())
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
    def found() -> bool:
        return log.read_text(errors="replace").count(text) >= times

    wait_until(found, _READY_S, f"the cluster did not come up: see {log}", every_s=0.1)


def take_and_read(master: str, url: str, lake: Path, rows: int, catalog: str = "") -> None:
    """Run the job on a cluster, and look at what it did."""
    with nexo.connect(url) as client:
        log = client.stream("log").create(partitions=2, tiering=True)
        for first in range(0, rows, CHUNK):
            log.publish_many([b"x" * 100] * min(CHUNK, rows - first))
    command = [sys.executable, "-c", JOB, master, url, str(lake), catalog]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=BUSY_S - 100, check=False
    )
    assert done.stdout.split() == ["taken", str(rows), "read", str(rows)], done.stderr[-3000:]
    assert Lake(LakeSettings(lake, catalog)).get("log").scan().count() == rows


@pytest.mark.timeout(BUSY_S)
@pytest.mark.skipif(not SOAK, reason="starts three JVMs more: set SOAK=1")
def test_a_standalone_cluster_takes_and_reads_a_stream(
    master: str, served: testing.Process, tmp_path: Path
) -> None:
    take_and_read(master, served.url, tmp_path / "lake", ROWS)


@pytest.mark.timeout(BUSY_S)
@pytest.mark.skipif(not SOAK, reason="starts three JVMs more: set SOAK=1")
def test_executors_that_share_no_disk_write_to_a_bucket(
    master: str, served: testing.Process, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    s3 = S3Server()
    s3.configure_lake(monkeypatch, "store", tmp_path / "catalog.db")
    take_and_read(master, served.url, tmp_path / "lake", 200_000, "store")
    s3.close()


@pytest.mark.timeout(BUSY_S)
def test_executors_in_processes_of_their_own_take_and_read_a_stream(
    served: testing.Process, tmp_path: Path
) -> None:
    take_and_read("local-cluster[2,1,1024]", served.url, tmp_path / "lake", 20_000)
