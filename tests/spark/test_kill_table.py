"""Kills of every kind while Spark writes: a table of what was killed, and of what is there after.

One application runs all scenarios, one after the other; only a killed driver starts Spark again.
``KILLS=1 pytest -s tests/spark/test_kill_table.py`` prints the table. ``KILLS`` is how many a
scenario takes (40 with ``SOAK=1``), ``SCENARIOS`` and ``MASTERS`` choose among them; a master may
also be ``local[2]``. Rows are counted and compared one by one; the last column is what the sweep
leaves.
"""

from __future__ import annotations

import itertools
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import nexo
from nexo import testing
from nexo.lake.catalog import Lake
from nexo.lake.maintenance.sweep import stored_files, sweep
from nexo.lake.manifests import read_entries, read_whole_list
from nexo.lake.paths import local_path
from nexo.lake.settings import LakeSettings
from nexo.lake.user_tables import get_user_table, user_tables
from tests.spark.killed_jobs import BUSY_S, CLUSTER, executors, finish, running, started
from tests.spark.sink_job import KEYS
from tests.spark.test_cluster import master
from tests.spark.test_sink_kills import fill, staging, written

__all__ = ["master"]

SOAK = bool(os.environ.get("SOAK"))
KILLS = int(os.environ.get("KILLS", "40" if SOAK else "1"))
ALL = "append,view,shuffle,maintenance,upsert,versions,join,refresh"
SCENARIOS = os.environ.get("SCENARIOS", ALL).split(",")
MASTERS = os.environ.get("MASTERS", "local-cluster,standalone" if SOAK else "local-cluster")
ROUNDS = max(3 * KILLS, 4)
ROWS = 200 * ROUNDS
REST_S = (0.5, 2.5)
KINDS = ("executor", "worker", "broker", "worker", "driver", "worker", "executor", "worker")
"""What is killed, in turn; a worker is a Python process of an executor or of the driver."""


@dataclass
class Killer:
    """Kills parts of a job, one after the other, until each scenario has had enough."""

    served: testing.Process
    start: Callable[[], subprocess.Popen[str]]
    now: Path
    """Holds the name of the scenario that runs."""
    job: subprocess.Popen[str]
    dice: random.Random
    kinds: Sequence[str] = KINDS
    counts: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))

    def run(self) -> str:
        """Returns what the job says at its end; one that the kills have ended is started again."""
        kinds, attempts = itertools.cycle(self.kinds), 8 * KILLS + 8
        for _ in range(attempts):
            kind = next(kinds)
            while self._rest(kind):
                if sum(self.counts[self._scenario].values()) < KILLS:
                    self.counts[self._scenario][kind] += getattr(self, f"_{kind}")()
                    break
            if self.job.poll() is not None:
                said = finish(self.job)
                if self.job.returncode == 0:
                    return said
                self.job = self.start()
        return finish(self.job)

    @property
    def _scenario(self) -> str:
        return self.now.read_text() if self.now.exists() else ""

    def _rest(self, kind: str) -> bool:
        """Wait, until there is something to kill; False if the job has ended."""
        ends_s = time.monotonic() + self.dice.uniform(*REST_S)
        found = executors if kind == "executor" else self._parts
        while self.job.poll() is None:
            if time.monotonic() >= ends_s and self._scenario and found(self.served):
                return True
            time.sleep(0.2)
        return False

    def _parts(self, served: testing.Process) -> list[int]:
        return running(served, b"pyspark.daemon")

    def _executor(self) -> int:
        found = executors(self.served)
        return _kill(self.dice.choice(found)) if found else 0

    def _worker(self) -> int:
        found = self._parts(self.served)
        return _kill(self.dice.choice(found)) if found else 0

    def _broker(self) -> int:
        self.served.kill()
        self.served.start()
        return 1

    def _driver(self) -> int:
        os.killpg(self.job.pid, signal.SIGKILL)
        self.job.wait()
        return 1


def _kill(process: int) -> int:
    try:
        os.kill(process, signal.SIGKILL)
    except ProcessLookupError:
        return 0
    return 1


# -- what is there after -----------------------------------------------------------------


def column(lake: Lake, table: str) -> list[Any]:
    found: list[Any] = get_user_table(lake, table).scan().to_arrow().column("value").to_pylist()
    return found


def rows(lake: Lake, table: str, *names: str) -> list[Any]:
    found = get_user_table(lake, table).scan().to_arrow().select(list(names)).to_pylist()
    return [tuple(each.values()) for each in found]


def newest(numbers: list[int]) -> list[Any]:
    return [(key, max(n for n in numbers if n % KEYS == key)) for key in range(KEYS)]


def spans(numbers: list[int]) -> list[Any]:
    """Each number of a key is a version, until the next one."""
    there = set(numbers)
    return [(n % KEYS, n, n, n + KEYS if n + KEYS in there else None) for n in numbers]


def outcome(client: nexo.Client, lake: Lake, scenario: str, values: list[str]) -> list[Any]:
    """What a scenario has written, and what it was to write."""
    out, numbers = f"{scenario}_out", [int(each) for each in values]
    match scenario:
        case "shuffle" | "join":
            return [written(client, out), values]
        case "upsert":
            return [rows(lake, out, "id", "value"), newest(numbers)]
        case "versions":
            return [rows(lake, out, "id", "value", "__START_AT", "__END_AT"), spans(numbers)]
        case "maintenance":
            return [column(lake, out) + column(lake, f"{out}_copied"), values * 2]
        case _:
            return [column(lake, out), values]


def orphans(lake: Lake, scenario: str) -> int:
    """Files of a scenario's tables that nothing names, after the sweep."""
    count = 0
    for table in user_tables(lake):
        if not table.name()[-1].startswith(f"{scenario}_out"):
            continue
        sweep(table, 0)
        sweep(table, 0)
        named = set()
        for each in table.refresh().metadata.snapshots:
            for manifest in read_whole_list(table.io, each.manifest_list):
                named |= {
                    local_path(e["data_file"]["file_path"])
                    for e in read_entries(table.io, manifest)
                }
        data = {local_path(path) for path in stored_files(table) if path.endswith(".parquet")}
        count += len(data - named)
    return count


@pytest.mark.skipif(
    not (SOAK or "KILLS" in os.environ), reason="takes minutes: set KILLS=1 or SOAK=1"
)
@pytest.mark.timeout(BUSY_S + 120 * KILLS * len(SCENARIOS))
@pytest.mark.parametrize("kind", MASTERS.split(","))
def test_nothing_is_lost_or_doubled(
    request: pytest.FixtureRequest, served: testing.Process, tmp_path: Path, kind: str
) -> None:
    url = CLUSTER if kind == "local-cluster" else kind
    if kind == "standalone":
        url = request.getfixturevalue("master")
    lake = Lake(LakeSettings(served.data_dir / "lake"))
    with nexo.connect(served.url) as client:
        values = fill(client, ROWS, *(f"{name}_out" for name in ("shuffle", "join")))

        def start() -> subprocess.Popen[str]:
            return started(
                served, tmp_path, ",".join([*SCENARIOS, ""]), url, rows=ROWS, rounds=ROUNDS
            )

        dice = random.Random(kind)
        kinds = [each for each in KINDS if each != "executor" or not kind.startswith("local[")]
        killer = Killer(served, start, tmp_path / "now", start(), dice, kinds)
        said = killer.run()
        assert "written" in said, said[-3000:]
        staging(served).sweep(grace_s=-1)
        wrong = list[str]()
        for scenario in SCENARIOS:
            found, expected = (Counter(each) for each in outcome(client, lake, scenario, values))
            lost, doubled = (expected - found).total(), (found - expected).total()
            left = orphans(lake, scenario)
            counts = killer.counts[scenario]
            kills = ", ".join(f"{n} {name}" for name, n in sorted(counts.items()))
            line = f"{scenario} | {kind} | {counts.total()} ({kills}) | {found.total():,} rows"
            line += f" | {lost} lost | {doubled} doubled | {left} orphans"
            sys.stdout.write(f"\n| {line} |")
            wrong += [line] if lost or doubled or left else []
        assert wrong == []
        assert staging(served).files() == []
