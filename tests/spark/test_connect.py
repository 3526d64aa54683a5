"""The data source through Spark Connect: a client without a JVM, and a server that runs queries."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import nexo
from pyspark_nexo.java import find_java

BUSY_S = 900
pytestmark = [
    pytest.mark.timeout(BUSY_S),
    pytest.mark.skipif(not os.environ.get("SOAK"), reason="starts a JVM of its own: set SOAK=1"),
    pytest.mark.skipif(
        find_spec("grpc_status") is None, reason="needs pip install 'pyspark[connect]'"
    ),
]

JOB = """
import json, sys
from nexo.errors import NexoError
from nexo.lake.catalog import Lake
from nexo.lake.settings import LakeSettings
from pathlib import Path
from pyspark.sql import SparkSession
from pyspark_nexo.failures import plain_errors
from pyspark_nexo.pipeline import Pipeline
from pyspark_nexo.views import register_views

url, folder = sys.argv[1], Path(sys.argv[2])
patient = {"spark.python.authenticate.socketTimeout": "300s"}  # a busy machine forks slowly
spark = SparkSession.builder.remote("local[2]").config(map=patient).getOrCreate()
found = {"client": type(spark).__module__}

def load(stream, **options):
    return spark.read.format("nexo").options(url=url, stream=stream, **options).load()

distinct = load("log", rowsPerTask="300").selectExpr("count(distinct partition, offset)")
found["read"] = distinct.collect()[0][0]
batch = load("log").select("key", "value")
batch.write.format("nexo").options(url=url, stream="out").mode("append").save()
query = (
    spark.readStream.format("nexo").options(url=url, stream="log").load().select("key", "value")
    .writeStream.format("nexo").options(url=url, stream="out")
    .option("checkpointLocation", str(folder / "checkpoint")).trigger(availableNow=True).start()
)
query.awaitTermination()
found["written"] = load("out").count()
lake = Lake(LakeSettings(folder / "lake"))
found["taken"] = Pipeline(spark, lake, url).run_once()
register_views(spark, lake, url)
found["sql"] = spark.sql("select count(*) from stream_messages where topic = 'log'").collect()[0][0]
try:
    with plain_errors():
        load("nowhere").count()
except NexoError as error:
    found["error"] = f"{type(error).__name__}: {error.message}"
print(json.dumps(found))
spark.stop()
"""


def test_a_connect_client_reads_writes_and_runs_the_pipeline(
    client: nexo.Client, url: str, tmp_path: Path
) -> None:
    client.stream("log").create(partitions=2, tiering=True).publish_many([b"x"] * 1_000)
    client.stream("out").create()
    find_java()
    command = [sys.executable, "-W", "ignore", "-c", JOB, url, str(tmp_path)]
    environment = os.environ | {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=BUSY_S - 100, check=False, env=environment
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout.splitlines()[-1]) == {
        "client": "pyspark.sql.connect.session", "read": 1_000, "written": 2_000, "taken": 1_000,
        "sql": 1_000, "error": "NotFound: stream 'nowhere' not found: create it first",
    }  # fmt: skip
