"""Kills of every kind while Spark writes: a table of what was killed, and of what is there after.

``SOAK=1 pytest -s tests/spark/test_kill_table.py`` prints it. ``KILLS`` is how many a job takes
(12), ``SCENARIOS`` and ``MASTERS`` choose among them. Rows are counted and compared one by one; the
last columns are what the sweep leaves.
"""

from __future__ import annotations

import itertools
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import nexo
from nexo import testing
from nexo.lake.catalog import Lake
from nexo.lake.maintenance.sweep import stored_files, sweep
from nexo.lake.manifests import read_entries, read_whole_list
from nexo.lake.paths import local_path
from nexo.lake.settings import LakeSettings
from nexo.lake.tables import newest_snapshot
from nexo.lake.user_tables import get_user_table, user_tables
from tests.spark.killed_jobs import CLUSTER, executors, finish, running, started
from tests.spark.test_cluster import master
from tests.spark.test_sink_kills import fill, staging, written

__all__ = ["master"]

SOAK = bool(os.environ.get("SOAK"))
KILLS = int(os.environ.get("KILLS", "12"))
SCENARIOS = os.environ.get("SCENARIOS", "append,shuffle,join,view,refresh").split(",")
MASTERS = os.environ.get("MASTERS", "local-cluster,standalone").split(",")
ROWS, ROUNDS = 40_000, 16
MOST_S = 1_500.0
"""After this long a job is left alone."""


@dataclass
class Killer:
    """Kills parts of a job, one after the other, until it has done enough."""

    served: testing.Process
    start: Callable[[], subprocess.Popen[str]]
    job: subprocess.Popen[str]
    most: int
    dice: random.Random
    counts: Counter[str] = field(default_factory=Counter)

    def run(self) -> str:
        """Returns what the job says at its end."""
        kinds = itertools.cycle(
            ["executor", "worker", "broker", "worker", "driver", "worker", "executor", "worker"]
        )
        until_s = time.monotonic() + MOST_S
        while sum(self.counts.values()) < self.most and time.monotonic() < until_s:
            if not self._rest(self.dice.uniform(3, 9)):
                return finish(self.job)
            kind = next(kinds)
            self.counts[kind] += getattr(self, f"_{kind}")()
        return finish(self.job)

    def _rest(self, seconds: float) -> bool:
        """Wait, of which only counts when the job has something to do; False if it has ended."""
        while not self._parts() and self.job.poll() is None:
            time.sleep(0.2)
        try:
            self.job.wait(seconds)
        except subprocess.TimeoutExpired:
            return True
        return self.job.returncode != 0 and self._again()

    def _again(self) -> bool:
        """A job whose query has failed is started again, as its owner would."""
        finish(self.job)
        self.job = self.start()
        return True

    def _parts(self) -> list[int]:
        return running(self.job.pid, b"pyspark.daemon")

    def _executor(self) -> int:
        found = executors(self.job)
        return _kill(self.dice.choice(found)) if found else 0

    def _worker(self) -> int:
        found = self._parts()
        return _kill(self.dice.choice(found)) if found else 0

    def _broker(self) -> int:
        self.served.kill()
        self.served.start()
        return 1

    def _driver(self) -> int:
        os.killpg(self.job.pid, signal.SIGKILL)
        self._again()
        return 1


def _kill(process: int) -> int:
    try:
        os.kill(process, signal.SIGKILL)
    except ProcessLookupError:
        return 0
    return 1


def table_values(lake: Lake) -> list[str]:
    found: list[str] = get_user_table(lake, "out").scan().to_arrow().column("value").to_pylist()
    return sorted(found)


def orphans(lake: Lake) -> int:
    """Files of tables that nothing names, after the sweep."""
    count = 0
    for table in user_tables(lake):
        sweep(table, 0)
        sweep(table, 0)
        snapshot = newest_snapshot(table.refresh())
        named = set()
        for each in table.metadata.snapshots if snapshot else ():
            for manifest in read_whole_list(table.io, each.manifest_list):
                named |= {
                    local_path(e["data_file"]["file_path"])
                    for e in read_entries(table.io, manifest)
                }
        data = {local_path(path) for path in stored_files(table) if path.endswith(".parquet")}
        count += len(data - named)
    return count


@pytest.mark.timeout(4 * MOST_S)
@pytest.mark.skipif(not SOAK, reason="takes many minutes: set SOAK=1")
@pytest.mark.parametrize("kind", MASTERS)
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_nothing_is_lost_or_doubled(
    request: pytest.FixtureRequest,
    served: testing.Process,
    tmp_path: Path,
    scenario: str,
    kind: str,
) -> None:
    url = CLUSTER if kind == "local-cluster" else request.getfixturevalue("master")
    lake = Lake(LakeSettings(served.data_dir / "lake"))
    with nexo.connect(served.url) as client:
        expected = fill(client, ROWS)

        def start() -> subprocess.Popen[str]:
            return started(served, tmp_path, scenario, url, rows=ROWS, rounds=ROUNDS)

        killer = Killer(served, start, start(), KILLS, random.Random(f"{scenario} {kind}"))
        said = killer.run()
        for _ in range(5):  # a query that the last kills have ended is started again
            if "written" in said:
                break
            said = finish(start())
        assert "written" in said, said[-3000:]
        into_stream = scenario in ("shuffle", "join")
        found = written(client) if into_stream else table_values(lake)
        lost, doubled = len(set(expected) - set(found)), len(found) - len(set(found))
        staging(served).sweep(grace_s=-1)
        left = orphans(lake) + len(staging(served).files())
        kills = ", ".join(f"{n} {name}" for name, n in sorted(killer.counts.items()))
        sys.stdout.write(
            f"\n| {scenario} | {kind} | {sum(killer.counts.values())} ({kills}) | {len(found):,} "
            f"rows, sum {sum(map(int, found)):,} | {lost} lost | {doubled} doubled | "
            f"{left} orphans |\n"
        )
        assert found == expected
        assert left == 0
