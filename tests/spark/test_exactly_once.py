"""Whatever is killed, and wherever: every offset is in the table once (SPEC I4)."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import nexo
from nexo import testing
from nexo.contracts import StreamContract
from nexo.errors import NexoError
from nexo.lake.catalog import Lake
from nexo.lake.maintenance.maintain import Care, maintain
from nexo.lake.paths import local_path
from nexo.lake.plan import BatchLimits
from nexo.lake.reading.ranges import file_ranges
from nexo.lake.settings import LakeSettings
from nexo.lake.tables import DEAD_LETTERS, offsets_of
from nexo.lake.typed.columns import set_schema
from pyspark_nexo.pipeline import Pipeline

from .conftest import Tally

if TYPE_CHECKING:
    from pyiceberg.table import Table

SOAK = bool(os.environ.get("SOAK"))
POINTS = [
    "before the file", "after the file", "before the commit", "after the commit", "reported",
    "before the dead letters",
]  # fmt: skip
START_S = 400
"""How long a killed pipeline may take to get to its end on a busy machine."""
SMALL = BatchLimits(batch_rows=400, task_rows=100)
BAD = b"no JSON"


def fill(client: nexo.Client, lake: Lake, url: str, count: int) -> None:
    """Publish records of which the typed columns refuse every tenth."""
    client.stream("log").create(partitions=2, tiering=True)
    set_schema(StreamContract(lake, url, "log").table(), {"n": "long"})
    publish(client, count)


def publish(client: nexo.Client, count: int) -> None:
    values = [b'{"n": %d}' % n if n % 10 else BAD for n in range(count)]
    client.stream("log").publish_many(values, keys=[f"k{n}" for n in range(count)])


def check(lake: Lake, client: nexo.Client, tally: Tally) -> None:
    """Total rows = distinct offsets = published, the refused ones are dead letters, each once,
    and there is no file but the tables' after the sweep."""
    parts = client.stream("log").info().partitions
    published = {(p, o) for p, part in enumerate(parts) for o in range(part.next_offset)}
    table = lake.get("log")
    rows = table.scan(selected_fields=("partition", "offset", "value")).to_arrow().to_pylist()
    found = [(row["partition"], row["offset"]) for row in rows]
    dead = places(lake.get("log", DEAD_LETTERS))
    tally.runs += 1
    tally.published += len(published)
    tally.rows += len(found)
    tally.distinct += len(set(found))
    tally.dead_letters += len(dead)
    assert len(found) == len(published)
    assert set(found) == published
    assert dead == sorted((r["partition"], r["offset"]) for r in rows if r["value"] == BAD)
    assert offsets_of(table.properties) == {p: part.next_offset for p, part in enumerate(parts)}
    assert [part.tiered_offset for part in parts] == [part.next_offset for part in parts]
    for each in lake.tables():
        check_files(each, tally)


def places(table: Table) -> list[tuple[int, int]]:
    rows = table.scan(selected_fields=("partition", "offset")).to_arrow().to_pylist()
    return sorted((row["partition"], row["offset"]) for row in rows)


def check_files(table: Table, tally: Tally) -> None:
    maintain(table, Care(max_snapshots=1, grace_s=0))  # older ones name files that were merged
    folder = local_path(table.location())
    assert folder is not None
    left = {str(path) for path in Path(folder, "data").rglob("*.parquet")}
    named = {local_path(part.path) for part in file_ranges(table.refresh())}
    tally.orphans += len(left - named)
    assert left == named


def run_killed(url: str, folder: Path, point: str, nth: int) -> None:
    script = Path(__file__).with_name("killed_pipeline.py")
    command = [sys.executable, str(script), url, str(folder), point, str(nth)]
    done = subprocess.run(
        command, start_new_session=True, capture_output=True, timeout=START_S, check=False
    )
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()[-2000:]


@pytest.mark.parametrize(
    ("point", "nth"),
    [(point, nth) for point in POINTS for nth in (1, 3)]
    if SOAK
    else [("after the file", 3), ("before the dead letters", 2)],
)
def test_spark_killed_at_a_point_takes_each_record_once(
    pipeline: Pipeline,
    lake: Lake,
    client: nexo.Client,
    url: str,
    tally: Tally,
    point: str,
    nth: int,
) -> None:
    fill(client, lake, url, 1_000)
    run_killed(url, lake.settings.folder, point, nth)
    pipeline.run_once()
    check(lake, client, tally)


@pytest.mark.skipif(not SOAK, reason="takes minutes: make soak")
@pytest.mark.parametrize("seed", range(10))
def test_spark_killed_anywhere_takes_each_record_once(
    pipeline: Pipeline, lake: Lake, client: nexo.Client, url: str, tally: Tally, seed: int
) -> None:
    chance = random.Random(seed)
    fill(client, lake, url, 5_000)
    script = Path(__file__).with_name("killed_pipeline.py")
    command = [sys.executable, str(script), url, str(lake.settings.folder), "never", "1"]
    with subprocess.Popen(
        command, start_new_session=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as victim:
        try:
            assert victim.stdout is not None
            assert victim.stdout.readline() == b"started\n"
            victim.wait(chance.uniform(0, 10))
        except subprocess.TimeoutExpired:
            pass
        finally:
            if victim.poll() is None:
                os.killpg(victim.pid, signal.SIGKILL)
    pipeline.run_once()
    check(lake, client, tally)


class Crash:
    """Kills the broker's processes when a point is reached, in whatever process that is."""

    def __init__(self, point: str, pid: int) -> None:
        self.point = point
        self.pid = pid

    def __call__(self, point: str) -> None:
        if point == self.point:
            os.killpg(self.pid, signal.SIGKILL)


@pytest.mark.parametrize("point", POINTS if SOAK else ["before the file", "after the commit"])
def test_a_broker_killed_at_a_point_loses_and_repeats_nothing(
    pipeline: Pipeline, lake: Lake, served: testing.Process, tally: Tally, point: str
) -> None:
    pipeline.url = f"{served.url}?down_wait=0.5"
    pipeline.limits = SMALL
    with nexo.connect(served.url) as client:
        fill(client, lake, served.url, 1_000)
    pipeline.probe = Crash(point, served.pid)
    with pytest.raises(NexoError):
        pipeline.run_once()
    served.kill()
    served.start()
    pipeline.probe = lambda _: None
    with nexo.connect(served.url) as client:
        client.stream("log").publish({"n": -1})
        pipeline.run_once()
        check(lake, client, tally)


def test_two_pipelines_on_one_stream_take_each_record_once(
    pipeline: Pipeline, lake: Lake, client: nexo.Client, url: str, tally: Tally
) -> None:
    rounds = 10 if SOAK else 3
    failures: list[BaseException] = []

    def race(one: Pipeline) -> None:
        try:
            for _ in range(rounds):
                one.run_batch(["log"])
        except BaseException as error:
            failures.append(error)

    rivals = [
        Pipeline(pipeline.spark, Lake(LakeSettings(lake.settings.folder)), url) for _ in range(2)
    ]
    fill(client, lake, url, 500)
    threads = [threading.Thread(target=race, args=(rival,)) for rival in rivals]
    for thread in threads:
        thread.start()
    for _ in range(rounds):
        publish(client, 500)
    for thread in threads:
        thread.join()
    assert failures == []
    pipeline.run_once()
    check(lake, client, tally)
