"""What a commit to a lake's table costs as the table's history grows.

``python -m benchmarks.commits`` prints one line per number of commits. Each commit adds a small
file; only the commit is timed, not the writing of the file.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from nexo import batch as batches
from nexo.lake.catalog import Lake, StreamId
from nexo.lake.commit import TakenRange, commit
from nexo.lake.files import DataFileFacts, FileWriter, Target, target
from nexo.lake.rows import rows
from nexo.lake.schema import raw_schema
from nexo.lake.settings import LakeSettings
from nexo.storage.header import stamp

POINTS = (10, 100, 300, 750, 1_500)
AROUND = 10
"""How many commits up to each point are timed; their median counts."""


@dataclass(frozen=True)
class CommitTime:
    """The median of some commits."""

    commits: int
    wall_s: float
    cpu_s: float


def measure(points: Iterable[int] = POINTS) -> Iterator[CommitTime]:
    """Commit to a new table, and time the commits just before each point."""
    wanted = sorted(points)
    with tempfile.TemporaryDirectory() as folder:
        lake = Lake(LakeSettings(Path(folder) / "lake"))
        table = lake.ensure(StreamId("log", 1), raw_schema)
        wall, cpu = list[float](), list[float]()
        for number in range(wanted[-1]):
            taken = TakenRange(0, number or None, number + 1, _written(target(table), number))
            wall_s, cpu_s = time.perf_counter(), time.process_time()
            table = commit(table, [taken], fresh=True)
            wall.append(time.perf_counter() - wall_s)
            cpu.append(time.process_time() - cpu_s)
            if number + 1 in wanted:
                last = slice(-AROUND, None)
                yield CommitTime(
                    number + 1, statistics.median(wall[last]), statistics.median(cpu[last])
                )


def _written(where: Target, offset: int) -> list[DataFileFacts]:
    head, body = batches.encode([b"x" * 100], 1, 1_000)
    stamp(head, offset)
    writer = FileWriter(where, 0, f"0-{offset}")
    writer.write([rows(batches.decode(bytes(head) + b"".join(body)), 0, offset, offset + 1)])
    return writer.close()


def growth(first: int = 10, last: int = 750) -> float:
    """How many times as long a commit takes after ``last`` commits as after ``first``."""
    early, late = measure((first, last))
    return late.wall_s / early.wall_s


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.commits", description=__doc__)
    parser.add_argument("--points", type=int, nargs="+", default=list(POINTS))
    print("commits   commit    of it CPU   against the first")
    first = None
    for each in measure(parser.parse_args().points):
        first = first or each
        print(
            f"{each.commits:7,}  {each.wall_s * 1000:6.1f} ms  {each.cpu_s * 1000:6.1f} ms  "
            f"{each.wall_s / first.wall_s:5.2f} x",
            flush=True,
        )


if __name__ == "__main__":
    main()
