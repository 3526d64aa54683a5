"""Another Spark with Iceberg's own runtime works on the lake while Nexo takes records into it.

Spark 4.1 is the newest for which there is one. It and its jars come from PyPI and Maven, once, into
``build/outsiders``: in CI and in ``make soak``, or wherever they are already.
"""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from nexo.errors import Conflict
from nexo.lake.catalog import Lake
from nexo.lake.maintenance.maintain import Care, maintain
from nexo.lake.settings import LakeSettings
from tests.simulation.lake import checks, ours
from tests.simulation.lake.model import Row, State
from tests.simulation.lake.site import Site

ROOT = Path(__file__).parents[2]
PARTS = ROOT / "build" / "outsiders"
PACKAGES = ("pyspark==4.1.4", "py4j==0.10.9.9")
HOW_TO = (ROOT / "docs" / "howto" / "operate-the-pipeline.md").read_text()
RECIPE = HOW_TO[HOW_TO.index("spark-sql --packages") :].partition("```")[0]
"""How an outsider commits."""
JARS = RECIPE.split()[2].split(",")
LOG, LATEST = "nexo.nexo.log", "nexo.nexo.log_latest"
EAGER = Care(min_files=2, grace_s=3_600)


class Outsider:
    """The other Spark, in a process of its own."""

    def __init__(self, lake: Path) -> None:
        environment = {
            **os.environ,
            "PYTHONPATH": str(PARTS / "python"),
            "SPARK_HOME": str(PARTS / "python" / "pyspark"),
        }
        script = Path(__file__).with_name("outsider.py")
        given = re.findall(r"--conf (\S+?)=(\S+)", RECIPE.replace("/srv/lake", str(lake)))
        command = [sys.executable, str(script), str(PARTS / "jars"), json.dumps(dict(given))]
        self._process = subprocess.Popen(
            command, env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
        self._answer()

    def __call__(self, statement: str) -> list[list[Any]]:
        """Its rows; a commit that loses against the pipeline's is repeated, as programs do."""
        assert self._process.stdin is not None
        for _ in range(10):
            self._process.stdin.write(f"{statement}\n")
            self._process.stdin.flush()
            found = self._answer()
            if "CommitFailedException" not in found.get("error", ""):
                break
        assert "error" not in found, found["error"]
        rows: list[list[Any]] = found["rows"]
        return rows

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        while not (line := self._process.stdout.readline()).startswith("{"):
            assert line, "the other Spark has ended"
        found: dict[str, Any] = json.loads(line)
        return found

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


@pytest.fixture(scope="module")
def parts() -> None:
    """The other Spark and its jars."""
    if (PARTS / "complete").exists():
        return
    if not (os.environ.get("CI") or os.environ.get("SOAK")):
        pytest.skip("Spark 4.1 with Iceberg's runtime is not in build/outsiders: SOAK=1 gets it")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target"]
    commands = [[*pip, str(PARTS / "python"), *PACKAGES]]
    for jar in JARS:
        options = (f"-Dartifact={jar}", f"-DoutputDirectory={PARTS / 'jars'}")
        commands.append(["mvn", "--quiet", "dependency:copy", *options])
    for command in commands:
        if shutil.which(command[0]) is None:
            pytest.skip(f"{command[0]} is not there, which gets Iceberg's runtime")
        subprocess.run(command, check=True, timeout=500)
    (PARTS / "complete").touch()


class Running:
    """A pipeline that takes records all the time, and the model of what it took."""

    def __init__(self, folder: Path) -> None:
        self.site = Site(folder, 1)
        self.chance = random.Random(7)
        self.lock = threading.Lock()
        self.commits = 0
        self._stopped = threading.Event()
        self._failure: list[BaseException] = []
        self._thread = threading.Thread(target=self._run)
        self.take()
        self._thread.start()

    def take(self) -> None:
        ours.ingest(self.site, self.chance, lambda: None)
        self.commits += 1

    def _run(self) -> None:
        while not self._stopped.wait(1):
            try:
                with self.lock:
                    self.take()
            except BaseException as error:
                self._failure.append(error)
                return

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()
        if self._failure:
            raise self._failure[0]

    def wait(self) -> None:
        """Until it has taken more records."""
        until = self.commits + 1
        while self.commits < until and not self._failure:
            time.sleep(0.02)
        if self._failure:
            raise self._failure[0]

    @contextmanager
    def paused(self) -> Iterator[Site]:
        with self.lock:
            yield self.site

    def forget(self, gone: Callable[[Row], bool]) -> None:
        """What others deleted."""
        self.site.change("records", lambda state: state.without(_named(state, gone)))

    def check(self) -> None:
        """Every way to read is right, now and after our own steps and more records."""
        with self.lock:
            checks.check(self.site, self.chance, thorough=True)
            table = self.site.table("records")
            assert table is not None
            maintain(table, EAGER)
            ours.newest(self.site, lambda: None)
            checks.check(self.site, self.chance, thorough=True)
        self.wait()
        with self.lock:
            checks.check(self.site, self.chance, thorough=True)


def _named(state: State, fits: Callable[[Row], bool]) -> list[str]:
    return [name for name, row in state.rows.items() if fits(row)]


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    found = Running(tmp_path)
    yield found
    found.stop()


@pytest.fixture
def spark(parts: None, running: Running) -> Iterator[Outsider]:
    found = Outsider(running.site.folder)
    yield found
    found.close()


def counted(running: Running, spark: Outsider, where: str, fits: Callable[[Row], bool]) -> None:
    """What the other Spark finds with its pruning is what there is."""
    with running.paused() as site:
        wanted = len(_named(site.of("records").state, fits))
        assert spark(f"select count(*) from {LOG} where {where}") == [[wanted]]


def test_all_that_others_do_beside_running_ingest(
    running: Running, spark: Outsider, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each statement of what once broke; replay, newest records, SQL and maintenance are right."""
    running.wait()
    options = "options => map('rewrite-all', 'true')"
    rewrite = f"call nexo.system.rewrite_data_files(table => 'nexo.nexo.log', {options})"
    spark(rewrite)  # L1: one file with all partitions
    running.check()
    spark(f"delete from {LOG} where partition = 1 and offset = 1")  # L1: copy-on-write
    running.forget(lambda row: (row.partition, row.offset) == (1, 1))
    running.check()
    spark(rewrite.replace("nexo.log", "nexo.log_latest", 1))  # L2
    running.check()

    spark(f"insert into {LOG} (value, headers) values (cast('odd' as binary), 'odd')")  # L3
    with running.paused() as site:
        odd = Row("odd", None, None, None, None, b"odd")
        site.change("records", lambda state: state.plus([odd]))
    spark(f"alter table {LOG} set tblproperties ('write.metadata.metrics.default' = 'none')")
    spark(rewrite)
    running.check()
    spark(f"alter table {LOG} unset tblproperties ('write.metadata.metrics.default')")

    spark(f"alter table {LOG} add partition field bucket(4, key)")  # L4
    running.check()
    counted(running, spark, "key = cast('a' as binary)", lambda row: row.key == b"a")
    spark(f"alter table {LOG} drop partition field day")  # L5
    running.check()
    spark(f"alter table {LOG} rename column value to payload")
    spark(f"alter table {LOG} add column note string")
    running.check()

    spark(f"alter table {LOG} set tblproperties ('write.delete.mode' = 'merge-on-read')")
    with running.paused() as site:  # L6: rows are deleted while their files are merged
        table = site.table("records")
        assert table is not None
        where = "partition = 0 and offset in (0, 2)"

        def delete() -> None:
            spark(f"delete from {LOG} where {where}")
            running.forget(lambda row: row.partition == 0 and row.offset in (0, 2))

        ours.merge(table, random.Random(1), delete)
    running.check()

    with running.paused(), monkeypatch.context() as patched:  # L7: our clock is behind
        real = time.time_ns
        patched.setattr(time, "time_ns", lambda: real() - 600 * 1_000_000_000)
        running.take()
    counted(running, spark, "true", lambda _: True)

    spark(f"alter table {LOG} create tag kept")  # L8
    with running.paused() as site:
        kept = (
            len(site.of("records").state.rows)
            - spark(f"select (select count(*) from {LOG}) - (select count(*) from {LOG}.tag_kept)")[
                0
            ][0]
        )
        table = site.table("records")
        assert table is not None
        maintain(table, Care(min_files=10_000, max_snapshots=1, grace_s=3_600))
        running.take()
    assert spark(f"select count(*) from {LOG}.tag_kept") == [[kept]]
    running.check()

    with running.paused() as site:  # L10
        before = site.of("records").state
        number = spark(
            f"select snapshot_id from {LOG}.snapshots order by committed_at desc limit 1"
        )
        running.take()
        spark(f"call nexo.system.rollback_to_snapshot('nexo.nexo.log', {number[0][0]})")
        site.change("records", lambda _: before)
        running.take()
        logs = site.model.log
        assert site.of("records").state.held == {p: len(log) for p, log in enumerate(logs)}
    running.check()
    spark("call nexo.system.expire_snapshots(table => 'nexo.nexo.log', retain_last => 1)")
    running.check()

    with running.paused() as site:  # L12: a copy has all of it, and leaves the original alone
        there = site.folder
        ours.copy(site)
        running.take()
        checks.check(site, running.chance, thorough=True)
        checks.last(site)
        ours.move(site)
        running.take()
        checks.check(site, running.chance, thorough=True)
        theirs = Lake(LakeSettings(there)).get("log")

    spark(f"alter table {LOG} set tblproperties ('format-version' = '3')")  # L11
    with pytest.raises(Conflict, match=r"version 3, .* no table goes back"):
        maintain(theirs, EAGER)
