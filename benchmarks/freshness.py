"""How soon a record is in its stream's table, with many streams: publish to visible.

``python -m benchmarks.freshness --streams 500 --seconds 120`` prints one line. Each stream gets a
record per second; the pipeline is a process of its own with a trigger of 1 s and maintenance on.
A record is visible once the catalog names metadata whose offsets include it.
"""

from __future__ import annotations

import argparse
import os
import signal
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

import nexo
from benchmarks import peers
from benchmarks.process_tree import cpu_s
from nexo.lake.paths import local_path
from nexo.lake.tables import offsets_of

VALUE = b"x" * 100
LOOK_S = 0.1
"""How often the catalog is looked at."""
_SETTLE_S = 60.0


class _Metadata(msgspec.Struct):
    properties: dict[str, str]


@dataclass
class Freshness:
    """What was seen."""

    delays_s: list[float] = field(default_factory=list)
    longest_gap_s: float = 0.0
    """Between two commits of one stream."""
    batches: int = 0
    cpu_s: float = 0.0
    """Of the pipeline: its process, the JVM and its workers."""

    def quantile(self, share: float) -> float:
        """The delay that this share of the records did not exceed."""
        ordered = sorted(self.delays_s)
        return ordered[min(int(len(ordered) * share), len(ordered) - 1)]

    def line(self, streams: int) -> str:
        """All of it for people."""
        return (
            f"{streams} streams: publish to visible p50 {statistics.median(self.delays_s):.2f} s, "
            f"p99 {self.quantile(0.99):.2f} s, longest gap {self.longest_gap_s:.1f} s, "
            f"{self.batches} commits per stream, {self.cpu_s / max(self.batches, 1):.2f} "
            f"CPU-s per batch, {len(self.delays_s):,} records"
        )


def measure(streams: int, seconds: float) -> Freshness:
    """Publish for some seconds, after a first batch that creates the tables."""
    with tempfile.TemporaryDirectory() as folder:
        lake = Path(folder) / "lake"
        with peers.nexo(lake_path=lake) as server, _pipeline(server.url, lake):
            return _Watch(server.url, lake, [f"s{n:04}" for n in range(streams)]).run(seconds)


@contextmanager
def _pipeline(url: str, lake: Path) -> Iterator[None]:
    command = [sys.executable, "-m", "nexo", "--url", url, "pipeline", "run", "--lake", str(lake)]
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    try:
        yield
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait()


class _Watch:
    """Publishes to streams and looks at the catalog meanwhile."""

    def __init__(self, url: str, lake: Path, names: list[str]) -> None:
        self._url, self._lake, self._names = url, lake, names
        self._published: dict[str, list[float]] = {name: [] for name in names}
        self._visible = dict.fromkeys(names, 0)
        self._locations: dict[str, str] = {}
        self._moved_s: dict[str, float] = {}
        self._commits = 0
        self._found = Freshness()
        self._stop = threading.Event()

    def run(self, seconds: float) -> Freshness:
        with nexo.connect(self._url) as client:
            opened = [client.stream(name).create(tiering=True) for name in self._names]
            self._publish(opened)
            self._await(_SETTLE_S * 5)
            self._found, self._commits, self._moved_s = Freshness(), 0, {}
            before, end_s = cpu_s("nexo serve"), time.monotonic() + seconds
            watcher = threading.Thread(target=self._look_until_stopped)
            watcher.start()
            while time.monotonic() < end_s:
                started_s = time.monotonic()
                self._publish(opened)
                time.sleep(max(1.0 - (time.monotonic() - started_s), 0))
            self._stop.set()
            watcher.join()
        self._found.batches = self._commits // len(self._names)
        self._found.cpu_s = cpu_s("nexo serve") - before
        self._await(_SETTLE_S)
        return self._found

    def _publish(self, streams: list[nexo.types.Stream[bytes]]) -> None:
        for name, stream in zip(self._names, streams, strict=True):
            stream.publish(VALUE)
            self._published[name].append(time.monotonic())

    def _look_until_stopped(self) -> None:
        while not self._stop.wait(LOOK_S):
            self._look()

    def _await(self, most_s: float) -> None:
        end_s = time.monotonic() + most_s
        while any(self._visible[name] < len(self._published[name]) for name in self._names):
            if time.monotonic() > end_s:
                raise TimeoutError("the pipeline does not catch up")
            self._look()
            time.sleep(LOOK_S)

    def _look(self) -> None:
        path = self._lake / "catalog.db"
        if not path.exists():
            return
        with closing(sqlite3.connect(path, timeout=60)) as catalog:
            query = "select table_name, metadata_location from iceberg_tables"
            try:
                rows = catalog.execute(query).fetchall()
            except sqlite3.OperationalError:  # no table yet
                return
        now_s = time.monotonic()
        for name, location in rows:
            if self._locations.get(name) != location and name in self._visible:
                self._locations[name] = location
                self._saw(name, location, now_s)

    def _saw(self, name: str, location: str, now_s: float) -> None:
        try:
            content = Path(local_path(location) or "").read_bytes()
        except FileNotFoundError:  # replaced meanwhile
            return
        properties = msgspec.json.decode(content, type=_Metadata).properties
        end, first = offsets_of(properties).get(0, 0), self._visible[name]
        if end > first:
            self._found.delays_s += [now_s - at for at in self._published[name][first:end]]
            gap_s = now_s - self._moved_s.get(name, now_s)
            self._found.longest_gap_s = max(self._found.longest_gap_s, gap_s)
            self._moved_s[name] = now_s
            self._visible[name] = end
            self._commits += 1


def main() -> None:
    """Measure once and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.freshness", description=__doc__)
    parser.add_argument("--streams", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=120.0)
    asked = parser.parse_args()
    print(measure(asked.streams, asked.seconds).line(asked.streams), flush=True)


if __name__ == "__main__":
    main()
