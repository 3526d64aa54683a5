"""Pipelines killed again and again, two at a time, with a catalog that misbehaves (SPEC I4, I9).

Streams are plain, compacted, written by transactions, and deleted and created again meanwhile; the
broker is killed now and then. In the end every acknowledged record is in the lake once, nothing of
an aborted transaction is, no table mixes two streams, and the sweep leaves no file over.
``SOAK=1 pytest -s tests/spark/test_kills.py`` kills forty times, or ``SOAK_KILLS``, and prints
the counts.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import nexo
from nexo import testing
from nexo.config.keywords import ServerSettings
from nexo.errors import NexoError, NotFound
from nexo.lake.catalog import Lake
from nexo.lake.settings import LakeSettings
from nexo.lake.tables import CREATED_MS, KIND, RECORDS, STREAM
from pyspark_nexo.pipeline import Pipeline

from .conftest import Tally
from .test_exactly_once import POINTS, check_files

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SOAK = bool(os.environ.get("SOAK"))
KILLS = int(os.environ.get("SOAK_KILLS", "40"))
SLOTS = 2
LIVES_S = 8.0
"""How long a pipeline that reaches no point of its own lives at most, after a micro-batch."""
BROKER_KILLED_EVERY = 8
"""Kills of pipelines between two kills of the broker."""


class Rollback(Exception):
    """What a transaction is rolled back with."""


@dataclass
class Load:
    """Publishes to all streams until it is stopped; knows what was acknowledged."""

    url: str
    chance: random.Random
    stop: threading.Event = field(default_factory=threading.Event)
    acknowledged: defaultdict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    aborted: set[str] = field(default_factory=set)
    incarnations: dict[int, str] = field(default_factory=dict)
    """Of the stream that is created again: what its values begin with."""
    recreated: int = 0
    _number: int = 0

    def run(self) -> None:
        with nexo.connect(f"{self.url}?timeout=60") as client:
            self._create(client)
            while not self.stop.is_set():
                for work in (self._plain, self._compacted, self._transaction, self._again):
                    with suppress(NexoError):  # the broker was killed: not acknowledged
                        work(client)
                self.stop.wait(0.05)

    def _create(self, client: nexo.Client) -> None:
        client.stream("plain").create(
            partitions=2, tiering=True, persistence="file_sync", retention={"max_bytes": 1}
        )
        client.stream("compacted").create(
            partitions=2, tiering=True, persistence="file_sync", cleanup="compact"
        )
        client.stream("transactional").create(tiering=True, persistence="file_sync")

    def _values(self, label: str, count: int = 20) -> list[str]:
        self._number += count
        return [f"{label}/{n}" for n in range(self._number - count, self._number)]

    def _plain(self, client: nexo.Client) -> None:
        values = self._values("plain")
        client.stream("plain").publish_many(values)
        self.acknowledged["plain"].update(values)
        client.stream("plain").apply_retention()

    def _compacted(self, client: nexo.Client) -> None:
        values = self._values("compacted")
        keys = [f"k{n % 5}" for n in range(len(values))]
        client.stream("compacted").publish_many(values, keys=keys)
        self.acknowledged["compacted"].update(values)
        client.stream("compacted").compact()

    def _transaction(self, client: nexo.Client) -> None:
        values, rolled_back = self._values("transactional", 5), self.chance.random() < 0.3
        with suppress(Rollback):
            if rolled_back:
                self.aborted.update(values)
            with client.transaction() as tx:
                for value in values:
                    tx.publish("transactional", value)
                if rolled_back:
                    raise Rollback
            self.acknowledged["transactional"].update(values)

    def _again(self, client: nexo.Client) -> None:
        stream = client.stream("again")
        if self.chance.random() < 0.02:
            with suppress(NotFound):
                stream.delete()
                self.recreated += 1
        stream.create(tiering=True, persistence="file_sync")
        created_ms = stream.info().created_ms
        label = self.incarnations.setdefault(created_ms, f"again-{len(self.incarnations)}")
        values = self._values(label)
        stream.publish_many(values)
        self.acknowledged[label].update(values)

    @property
    def current(self) -> str:
        return self.incarnations[max(self.incarnations)]


class Slot:
    """One place for a pipeline: started, killed, started again."""

    def __init__(self, url: str, folder: Path, seed: int, log: Path) -> None:
        self.url, self.folder, self.log = url, folder, log
        self.chance = random.Random(seed)
        self.kills = 0

    def kill_one(self) -> None:
        """Run a pipeline until it is killed, by itself at a point or at any moment."""
        point, nth = self.chance.choice(POINTS[:5]), str(self.chance.randint(1, 6))
        if self.chance.random() < 0.5:
            point = "never"
        script = Path(__file__).with_name("unreliable_pipeline.py")
        command = [sys.executable, str(script), self.url, str(self.folder), point, nth]
        command.append(str(self.chance.getrandbits(32)))
        with self.log.open("ab") as log, subprocess.Popen(
            command, start_new_session=True, stdout=subprocess.PIPE, stderr=log
        ) as victim:  # fmt: skip
            try:
                assert victim.stdout is not None
                if victim.stdout.readline():
                    victim.wait(self.chance.uniform(0, LIVES_S))
                victim.wait()
                assert victim.returncode == -signal.SIGKILL, self.log.read_text()[-2_000:]
            except subprocess.TimeoutExpired:
                self._strike(victim.pid)
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(victim.pid, signal.SIGKILL)
        self.kills += 1

    def _strike(self, group: int) -> None:
        """Kill the JVM, a Python worker or everything; what is left is killed a moment later."""
        stats = Path("/proc").glob("[0-9]*/stat")
        members = [int(stat.parent.name) for stat in stats if _group(stat) == group]
        if self.chance.random() < 0.5:
            with suppress(ProcessLookupError, IndexError):
                os.kill(self.chance.choice(members), signal.SIGKILL)
            time.sleep(self.chance.uniform(0, 2))


def _group(stat: Path) -> int:
    try:
        return int(stat.read_text().rpartition(")")[2].split()[2])
    except OSError:  # it has ended
        return 0


@dataclass
class Counts:
    """What was found in the end."""

    acknowledged: int = 0
    rows: int = 0
    distinct: int = 0
    lost: int = 0
    aborted_seen: int = 0
    mixed: int = 0
    orphans: int = 0


def count(lake: Lake, load: Load, tally: Tally | None) -> Counts:
    """Compare every table of records with what was acknowledged; with a tally, sweep the files."""
    found = Counts()
    for table in lake.tables():
        if table.properties.get(KIND, RECORDS) == RECORDS:
            label = table.properties[STREAM]
            if label == "again":
                label = load.incarnations.get(int(table.properties[CREATED_MS]), "unknown")
            columns = ("partition", "offset", "value")
            rows = table.scan(selected_fields=columns).to_arrow().to_pylist()
            values = {row["value"].decode() for row in rows}
            found.rows += len(rows)
            found.distinct += len({(row["partition"], row["offset"]) for row in rows})
            found.aborted_seen += len(values & load.aborted)
            found.mixed += sum(not value.startswith(f"{label}/") for value in values)
            if label in ("plain", "compacted", "transactional", load.current):
                found.acknowledged += len(load.acknowledged[label])
                found.lost += len(load.acknowledged[label] - values)
    if tally is not None:
        before = tally.orphans
        for table in lake.tables():
            check_files(table, tally)
        found.orphans = tally.orphans - before
    return found


@pytest.mark.skipif(not SOAK, reason="takes minutes: make soak")
@pytest.mark.timeout(7_200)
def test_however_often_pipelines_are_killed_each_record_is_taken_once(
    spark: SparkSession, tmp_path: Path, tally: Tally
) -> None:
    folder, seed = tmp_path / "nexo" / "lake", int(os.environ.get("SOAK_SEED", "20261116"))
    settings: ServerSettings = {
        "hot_ms": 0,
        "hot_messages": 0,
        "segment_bytes": 16_384,
        "dashboard": False,
    }
    with testing.process(tmp_path / "nexo", **settings) as served:
        load = Load(served.url, random.Random(seed))
        slots = [Slot(served.url, folder, seed + n, tmp_path / f"{n}.log") for n in range(SLOTS)]
        turns = iter(range(KILLS))
        loading = threading.Thread(target=load.run)
        killers = [threading.Thread(target=_kill_until, args=(slot, turns)) for slot in slots]
        broker_killed = 0
        for thread in (loading, *killers):
            thread.start()
        while any(killer.is_alive() for killer in killers):
            time.sleep(0.2)
            if sum(slot.kills for slot in slots) >= (broker_killed + 1) * BROKER_KILLED_EVERY:
                served.kill()
                served.start()
                broker_killed += 1
        load.stop.set()
        loading.join()
        lake = Lake(LakeSettings(folder))
        before = count(lake, load, None).rows
        Pipeline(spark, lake, served.url).run_once()
        found = count(lake, load, tally)
    kills = sum(slot.kills for slot in slots)
    print(  # noqa: T201 - the figures are to be seen
        f"\n{kills} kills of pipelines, {broker_killed} of the broker, {load.recreated} streams "
        f"created again: acknowledged {found.acknowledged:,}, rows {found.rows:,} ({before:,} of "
        f"them taken by pipelines that were killed), "
        f"distinct {found.distinct:,}, lost {found.lost}, aborted seen {found.aborted_seen}, "
        f"mixed {found.mixed}, orphans {found.orphans}"
    )
    assert kills == KILLS
    assert found.acknowledged > 0
    assert found.rows == found.distinct
    assert (found.lost, found.aborted_seen, found.mixed, found.orphans) == (0, 0, 0, 0)


def _kill_until(slot: Slot, turns: Iterator[int]) -> None:
    for _ in turns:
        slot.kill_one()
