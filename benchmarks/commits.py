"""What a commit to a lake's table costs as the table's history grows.

``python -m benchmarks.commits`` prints one line per number of commits. Each commit adds a small
file; only the commit is timed, not the writing of the file. Machines are noisy, so each figure is
taken beside that of a new table, commit by commit in turn.
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
from nexo.lake.catalog import Lake
from nexo.lake.files import DataFileFacts, FileWriter, target
from nexo.lake.names import file_label
from nexo.lake.once import WrittenRange, commit
from nexo.lake.own_columns import ROWS
from nexo.lake.rows import rows
from nexo.lake.settings import LakeSettings
from nexo.lake.tables import StreamId
from nexo.storage.header import stamp

POINTS = (10, 100, 300, 750, 1_500)
AROUND = 40
"""How many commits are timed at each point: enough to see merges of manifests, so their mean
counts.
"""
NEW = 10
"""Commits that a new table has."""


@dataclass(frozen=True)
class CommitTime:
    """The means of some commits, of a table with history and of a new one."""

    commits: int
    wall_s: float
    cpu_s: float
    new_s: float

    @property
    def ratio(self) -> float:
        """How many times as long it takes as on a new table."""
        return self.wall_s / self.new_s


class _Commits:
    """A table, committed to again and again."""

    def __init__(self, lake: Lake, name: str) -> None:
        self._table = lake.ensure(StreamId(name, 1), ROWS)
        self.count = 0

    def grow(self, count: int) -> None:
        while self.count < count:
            self.commit()

    def commit(self) -> tuple[float, float]:
        """One more; returns its time and its CPU time."""
        number = self.count
        taken = WrittenRange(0, number or None, number + 1, self._written(number))
        wall_s, cpu_s = time.perf_counter(), time.process_time()
        self._table = commit(self._table, [taken], fresh=True)
        self.count += 1
        return time.perf_counter() - wall_s, time.process_time() - cpu_s

    def _written(self, offset: int) -> list[DataFileFacts]:
        head, body = batches.encode([b"x" * 100], 1, 1_000)
        stamp(head, offset)
        writer = FileWriter(target(self._table), file_label(0, offset, offset + 1))
        writer.write([rows(batches.decode(bytes(head) + b"".join(body)), 0, offset, offset + 1)])
        return writer.close()


def measure(points: Iterable[int] = POINTS) -> Iterator[CommitTime]:
    """Commit to a table, and time the commits at each point beside those to a new table."""
    with tempfile.TemporaryDirectory() as folder:
        lake = Lake(LakeSettings(Path(folder) / "lake"))
        old = _Commits(lake, "log")
        for point in sorted(points):
            new = _Commits(lake, f"new_{point}")
            new.grow(NEW)
            old.grow(point)
            times = [(*old.commit(), new.commit()[0]) for _ in range(AROUND)]
            yield CommitTime(point, *map(statistics.fmean, zip(*times, strict=True)))


def growth(commits: int = 750) -> float:
    """How many times as long a commit takes after so many commits as on a new table."""
    (found,) = measure([commits])
    return found.ratio


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.commits", description=__doc__)
    parser.add_argument("--points", type=int, nargs="+", default=list(POINTS))
    print("commits   commit    of it CPU   new table   ratio")
    for each in measure(parser.parse_args().points):
        print(
            f"{each.commits:7,}  {each.wall_s * 1000:6.1f} ms  {each.cpu_s * 1000:6.1f} ms  "
            f"{each.new_s * 1000:8.1f} ms  {each.ratio:5.2f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
