"""What a stream costs in a micro-batch, with many streams: CPU of the driver, workers and the JVM.

``python -m benchmarks.many --streams 500 2000`` prints one line per number of streams. Each batch
takes one new record of every stream; the batch that makes the tables is timed by itself.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import nexo
from benchmarks import peers
from benchmarks.process_tree import cpu_s
from nexo.lake.catalog import Lake
from nexo.lake.settings import LakeSettings
from pyspark_nexo.pipeline import Pipeline
from pyspark_nexo.sessions import session

VALUE = b"x" * 100
BATCHES = 8
_JVM = "org.apache.spark.deploy"


@dataclass(frozen=True)
class ManyStreams:
    """CPU milliseconds per stream and batch, and what the first batch took."""

    streams: int
    driver_ms: float
    workers_ms: float
    jvm_ms: float
    first_s: float
    batch_s: float

    @property
    def all_ms(self) -> float:
        return self.driver_ms + self.workers_ms + self.jvm_ms

    def line(self) -> str:
        """All of it for people."""
        return (
            f"{self.streams:6,} streams: {self.all_ms:5.2f} CPU-ms per stream and batch "
            f"(driver {self.driver_ms:.2f}, workers {self.workers_ms:.2f}, JVM {self.jvm_ms:.2f}), "
            f"{self.batch_s:5.1f} s a batch, {self.first_s:6.1f} s for the first"
        )


def measure(streams: int, batches: int = BATCHES) -> ManyStreams:
    """Take one record of each stream again and again."""
    names = [f"s{number:05}" for number in range(streams)]
    with tempfile.TemporaryDirectory() as folder:
        lake = Path(folder) / "lake"
        with peers.nexo(lake_path=lake) as server, nexo.connect(server.url) as client:
            opened = [client.stream(name).create(tiering=True) for name in names]
            spark = session("local[2]", conf={"spark.driver.memory": "1g"})
            try:
                pipeline = Pipeline(spark, Lake(LakeSettings(lake)), server.url)
                first_s = _taken(pipeline, names, opened)
                _taken(pipeline, names, opened)
                before = _used()
                spent_s = sum(_taken(pipeline, names, opened) for _ in range(batches))
                used = [now - then for now, then in zip(_used(), before, strict=True)]
            finally:
                spark.stop()
    driver, jvm, every = (seconds * 1000 / streams / batches for seconds in used)
    return ManyStreams(
        streams, driver, every - driver - jvm, jvm, first_s, spent_s / batches
    )  # fmt: skip


def _taken(pipeline: Pipeline, names: list[str], opened: list[nexo.types.Stream[bytes]]) -> float:
    for stream in opened:
        stream.publish(VALUE)
    started_s = time.monotonic()
    taken = sum(each.rows for each in pipeline.run_batch(names))
    assert taken == len(names), f"{taken} records of {len(names)}"
    return time.monotonic() - started_s


def _used() -> tuple[float, float, float]:
    """CPU seconds of this process, of the JVM, and of everything but the server."""
    every = cpu_s("nexo serve")
    times = os.times()
    return times.user + times.system, _of_jvm(), every


def _of_jvm() -> float:
    ticks = 0
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                if _JVM.encode() in (folder / "cmdline").read_bytes() and _is_below(folder.name):
                    fields = (folder / "stat").read_text().rsplit(")", 1)[1].split()
                    ticks += int(fields[11]) + int(fields[12])
            except OSError:
                continue
    return ticks / os.sysconf("SC_CLK_TCK")


def _is_below(pid: str) -> bool:
    while pid not in ("0", "1"):
        if pid == str(os.getpid()):
            return True
        pid = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1]
    return False


def main() -> None:
    """Print a line per number of streams."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.many", description=__doc__)
    parser.add_argument("--streams", type=int, nargs="+", default=[500, 2_000])
    parser.add_argument("--batches", type=int, default=BATCHES)
    asked = parser.parse_args()
    for streams in asked.streams:
        print(measure(streams, asked.batches).line(), flush=True)


if __name__ == "__main__":
    main()
