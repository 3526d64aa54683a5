"""``nexo sql``: from the command's start to its result, beside DuckDB over the same files.

DuckDB alone is a Python process, too, that reads the lake's data files and nothing of the hot log.
Both start from compiled modules, as pip leaves them, even where Python is told to write none.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

import nexo
from benchmarks.harness import Bench, Contender, Measure, Row
from nexo.hot_log import HotLog
from nexo.lake.catalog import Lake
from nexo.lake.once import commit
from nexo.lake.own_columns import ROWS as COLUMNS
from nexo.lake.plan import BatchLimits, planned_ranges
from nexo.lake.reading.ranges import file_ranges
from nexo.lake.settings import LakeSettings
from nexo.lake.tables import StreamId, offsets_of
from pyspark_nexo.steps import StreamStep, WrittenFiles, unreported
from pyspark_nexo.tiering import Fetcher

ROWS = 2_000_000
HOT = 10_000
CHUNK = 50_000
KEYS = 1_000
_WRITES_NO_MODULES = "PYTHONDONTWRITEBYTECODE"
_QUERY = "select {}, count(*), max({}) from {} group by 1 order by 1 limit 10"


def rows() -> list[Row]:
    return [
        _row("partition", "partition"),
        _row("key", "key"),
        _row("JSON field", "get_json_object(cast(value as string), '$.city')",
             "json_extract_string(decode(value), '$.city')"),
    ]  # fmt: skip


def _row(label: str, ours: str, theirs: str = "") -> Row:
    def command(bench: Bench) -> Measure:
        ground = _Ground(bench)
        query = _QUERY.format(ours, "offset", "orders")
        return _timed(bench, "-m", "nexo", "--url", ground.url, "sql", query)

    def alone(bench: Bench) -> Measure:
        files = [file.removeprefix("file://") for file in _Ground(bench).files]
        query = _QUERY.format(theirs or ours, '"offset"', f"read_parquet({files!r})")
        return _timed(bench, "-c", f"import duckdb; print(duckdb.sql({query!r}))")

    return Row(
        f"nexo sql, start to result: group by {label}, 2 M rows in the lake, 10,000 hot", "s",
        ours=Contender("nexo", command), peers=[Contender("DuckDB alone", alone)],
        bar=2.5, lower_is_better=True,
    )  # fmt: skip


def _timed(bench: Bench, *arguments: str) -> Measure:
    """Times a Python process; the warm-up round compiles what it imports."""
    environ = {name: text for name, text in os.environ.items() if name != _WRITES_NO_MODULES}
    environ["PYTHONPYCACHEPREFIX"] = bench.enter(tempfile.TemporaryDirectory())

    def measure() -> float:
        started_s = time.perf_counter()
        command = [sys.executable, *arguments]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=environ)
        return time.perf_counter() - started_s

    return measure


class _Ground:
    """A server with a stream that is in the lake but for its newest records."""

    def __init__(self, bench: Bench) -> None:
        folder = Path(bench.enter(tempfile.TemporaryDirectory()))
        self._lake = Lake(LakeSettings(folder / "lake"))
        self.url = bench.nexo(lake_path=folder / "lake").url
        with nexo.connect(self.url) as client:
            stream = client.stream("orders").create(partitions=2, tiering=True)
            count = bench.scaled(ROWS)
            for first in range(0, count, CHUNK):
                self._publish(stream, first, CHUNK)
                if (first // CHUNK) % 4 == 3 or first + CHUNK >= count:
                    self._take()
            self._publish(stream, count, HOT)
        self.files = [each.path for each in file_ranges(self._lake.get("orders"))]

    def _publish(self, stream: nexo.types.Stream[bytes], first: int, count: int) -> None:
        numbers = range(first, first + count)
        values = [b'{"n":%d,"city":"%d","text":"%s"}' % (n, n % 100, b"x" * 60) for n in numbers]
        stream.publish_many(values, keys=[f"k{n % KEYS}" for n in numbers])

    def _take(self) -> None:
        """What the pipeline does, without Spark."""
        with HotLog(self.url) as broker:
            info = broker.describe("orders")
            table = self._lake.ensure(StreamId("orders", info.created_ms), COLUMNS)
            found = planned_ranges(
                "orders", offsets_of(table.properties), info.partitions, BatchLimits()
            )
            step = StreamStep(info, table, found)
            files: WrittenFiles = defaultdict(list)
            ranges = list(step.ranges(BatchLimits()))
            for part, outcome in zip(ranges, Fetcher(self.url)(ranges), strict=True):
                assert isinstance(outcome, list)
                files[part.stream, part.partition] += outcome
            commit(table, step.written(files))
            assert not any(broker.tiered_all(list(unreported(info, table))))
