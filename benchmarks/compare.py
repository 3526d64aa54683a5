"""``python -m benchmarks.compare REV [--only stream] [--match …]``: our rows, before and after.

Runs our side of each row in two trees, the one of revision ``REV`` and this one, with both
servers up and short rounds in turn. Prints the median of after ÷ before, for the row's figure
and for the CPU time of client and server together. Above 1 is better: quicker, or less CPU.
With `HEAD` of an unchanged tree it prints how far the same code lies from itself.

Each tree is measured by its own benchmarks, so rows that one of them lacks are left out.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

HERE = Path(__file__).parents[1]
GROUPS = "store,pubsub,queue,stream"
ROUNDS = 15


class Side:
    """One tree's part of a row, in a process of its own."""

    def __init__(self, tree: Path, group: str, row: str) -> None:
        environ = os.environ | {"PYTHONPATH": f"{tree / 'src'}{os.pathsep}{tree}"}
        command = [sys.executable, "-P", __file__, "--measure", group, row]
        self._process = subprocess.Popen(
            command, cwd=tree, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def round(self) -> tuple[float, float] | None:
        """The figure and the CPU seconds of one round; None if the tree lacks the row."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write("\n")
            self._process.stdin.flush()
            answer = self._process.stdout.readline()
        except BrokenPipeError:
            return None
        return tuple(json.loads(answer)) if answer else None

    def close(self) -> None:
        """End it and its server."""
        self._process.communicate()


def measure(group: str, name: str) -> int:
    """A side: prepare our contender of one row, then measure a round for each line of input."""
    from benchmarks.harness import Bench, Outcome, Turn  # noqa: PLC0415 - the tree's own

    rows = importlib.import_module(f"benchmarks.{group}").rows()
    row = next((row for row in rows if row.name == name), None)
    if row is None:
        return 1
    outcome = Outcome("ours")
    turn = Turn(Bench(quick=True), outcome)
    try:
        if not turn.prepare(row.ours):
            raise RuntimeError(outcome.failed or outcome.missing)
        for _ in sys.stdin:
            turn.measure()
            cpu_s = outcome.client_cpu_s[-1] + outcome.server_cpu_s[-1]
            print(json.dumps([outcome.figures[-1], cpu_s]), flush=True)
    finally:
        turn.close()
    return 0


def compare(before: Path, group: str, row: str, rounds: int) -> list[list[tuple[float, float]]]:
    """The figures of both trees, round by round; an empty list if one lacks the row."""
    with ExitStack() as stack:
        sides = [Side(tree, group, row) for tree in (before, HERE)]
        for side in sides:
            stack.callback(side.close)
        found: list[list[tuple[float, float]]] = []
        for number in range(rounds):
            order = (0, 1) if number % 2 else (1, 0)
            pair = {at: sides[at].round() for at in order}
            if pair[0] is None or pair[1] is None:
                return []
            found.append([pair[0], pair[1]])
        return found


@contextmanager
def checked_out(revision: str) -> Iterator[Path]:
    """The files of a revision in a temporary folder."""
    with tempfile.TemporaryDirectory(prefix="nexo-compare-") as folder:
        packed = subprocess.run(["git", "archive", revision], check=True, stdout=subprocess.PIPE)
        subprocess.run(["tar", "-x", "-C", folder], check=True, input=packed.stdout)
        yield Path(folder)


def main() -> int:
    """Compare what was asked for and print one line per row."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.compare", description=__doc__)
    parser.add_argument("revision", help="what to compare with")
    parser.add_argument("--only", default=GROUPS, help=f"groups of rows, {GROUPS} if not given")
    parser.add_argument("--match", default="", help="only rows whose name contains this")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="pairs of rounds per row")
    asked = parser.parse_args()
    print(f"{'row':58} {'speed':>6} {'middle half':>13} {'CPU':>6}")
    with checked_out(asked.revision) as before:
        for group in asked.only.split(","):
            for row in importlib.import_module(f"benchmarks.{group}").rows():
                wanted = asked.match in row.name if asked.match else not row.slow
                if wanted and row.unit not in ("MB", "×"):
                    rounds = compare(before, group, row.name, asked.rounds)
                    print_row(row.name, rounds, lower_is_better=row.lower_is_better)
    return 0


def print_row(name: str, rounds: list[list[tuple[float, float]]], *, lower_is_better: bool) -> None:
    """The line of one row: above 1 is better."""
    if not rounds:
        print(f"{name:58} not in both")
        return
    speeds = [new[0] / old[0] for old, new in rounds]
    if lower_is_better:
        speeds = [1 / speed for speed in speeds]
    low, middle, high = statistics.quantiles(speeds, n=4)
    cpu = sum(old[1] for old, _ in rounds) / sum(new[1] for _, new in rounds)
    print(f"{name:58} {middle:6.2f} {low:6.2f}-{high:<6.2f} {cpu:6.2f}", flush=True)


if __name__ == "__main__":
    sys.exit(measure(*sys.argv[2:]) if sys.argv[1:2] == ["--measure"] else main())
