"""Whose settings a session has: ours only where nobody asks for others (P1)."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from nexo.testing import free_port
from pyspark_nexo.java import find_java
from tests.timing import wait_until

SUBMITTED = """
from pyspark_nexo.sessions import session
spark = session(conf={"spark.nexo.given": "here"})
names = ["spark.sql.session.timeZone", "spark.sql.shuffle.partitions", "spark.nexo.given"]
print("found", spark.sparkContext.master, *map(spark.conf.get, names))
print("ui", spark.sparkContext.uiWebUrl is not None)
"""
WAITING = """
import sys, threading
from pyspark_nexo.sessions import session
from nexo.cli.lake.spark_session import executors_watched
spark = session(sys.argv[1], conf={"spark.driver.host": "127.0.0.1"})
said = threading.Event()
def say(text):
    print(text, flush=True)
    said.set()
with executors_watched(spark, say, wait_s=0.1):
    said.wait(60)
"""


def environ() -> dict[str, str]:
    find_java()
    return os.environ | {"SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}


def run(command: list[str], **variables: str) -> str:
    done = subprocess.run(
        command, env=environ() | variables, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_what_spark_submit_says_is_not_overridden(tmp_path: Path) -> None:
    script = tmp_path / "submitted.py"
    script.write_text(SUBMITTED)
    submit = str(Path(sys.executable).with_name("spark-submit"))
    settings = ["--conf", "spark.sql.session.timeZone=Asia/Tokyo", "--conf", "spark.ui.port=0"]
    said = run([submit, "--master", "local[3]", *settings, str(script)], SPARK_MASTER="local[1]")
    assert "found local[3] Asia/Tokyo 8 here" in said
    assert "ui True" in said


def accepts(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture
def empty_cluster(tmp_path: Path) -> Iterator[str]:
    """A standalone master without workers."""
    port, log = free_port(), tmp_path / "master.log"
    command = [str(Path(sys.executable).with_name("spark-class"))]
    command += ["org.apache.spark.deploy.master.Master", "--host", "127.0.0.1"]
    command += ["--port", str(port), "--webui-port", str(free_port())]
    with (
        log.open("wb") as file,
        subprocess.Popen(command, env=environ(), stdout=file, stderr=file) as master,
    ):
        wait_until(lambda: accepts(port), 200, "no master", every_s=0.1)
        yield f"spark://127.0.0.1:{port}"
        master.terminate()


@pytest.mark.skipif(not os.environ.get("SOAK"), reason="starts two JVMs more: set SOAK=1")
def test_a_cluster_without_executors_is_told(empty_cluster: str) -> None:
    said = run([sys.executable, "-c", WAITING, empty_cluster])
    assert said.startswith(f"no executor on {empty_cluster}")
