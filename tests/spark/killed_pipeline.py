"""A pipeline in a process of its own that kills itself, JVM and all, at a given point.

``python killed_pipeline.py URL LAKE POINT NTH``: at the NTH time that POINT is reached. It says
``started`` once Spark runs.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from nexo.lake.catalog import Lake
from nexo.lake.plan import BatchLimits
from nexo.lake.settings import LakeSettings
from pyspark_nexo.pipeline import Pipeline
from pyspark_nexo.sessions import session

CONF = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}
LIMITS = BatchLimits(batch_rows=400, task_rows=100)


class Killer:
    """Counts in a file, because points are reached in several processes."""

    def __init__(self, point: str, nth: int, counter: Path) -> None:
        self.point = point
        self.nth = nth
        self.counter = counter
        self.group = os.getpgrp()

    def __call__(self, point: str) -> None:
        if point != self.point:
            return
        with self.counter.open("a") as file:
            file.write("x")
        if self.counter.stat().st_size >= self.nth:
            os.killpg(self.group, signal.SIGKILL)


def main(url: str, folder: str, point: str, nth: str) -> None:
    spark = session("local[2]", conf=CONF)
    sys.stdout.write("started\n")
    sys.stdout.flush()
    probe = Killer(point, int(nth), Path(folder).with_suffix(".count"))
    Pipeline(spark, Lake(LakeSettings(Path(folder))), url, probe=probe, limits=LIMITS).run_once()


if __name__ == "__main__":
    main(*sys.argv[1:])
