"""``python -m benchmarks [--quick] [--only store,queue]``: a table, JSON and charts.

A row that fails is shown as failed, a peer that is missing as missing. The exit code is 1
if the guard found a regression or the run was stopped.
"""

from __future__ import annotations

import argparse
import importlib
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from benchmarks import charts, curves, guard, machine, report
from benchmarks.harness import ROUNDS, Contender, Outcome, Result, Row, run

GROUPS = (
    "store",
    "pubsub",
    "queue",
    "stream",
    "singles",
    "growth",
    "scaling",
    "pipeline",
    "sql",
    "service",
    "frameworks",
    "kafka",
    "replicated",
)


def main() -> int:
    """Run what was asked for and report it."""
    asked = _arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that servers end with the run
    if asked.no_hiredis:
        sys.modules["hiredis"] = None  # type: ignore[assignment]  # makes its import fail
    groups = asked.only.split(",") if asked.only else [*GROUPS, "guard"]
    start = time.monotonic()
    found: dict[str, Any] = {
        "time": report.stamp(),
        "command": " ".join(["python -m benchmarks", *sys.argv[1:]]),
        "quick": asked.quick,
        "complete": not (asked.quick or asked.only or asked.match or asked.no_hiredis),
        "machine": machine.describe(),
        "limits": machine.limits(asked.quick) if groups != ["guard"] else {},
        "rows": [],
        "curves": [],
    }
    report.print_machine(found)
    failed = False
    try:
        for group in groups:
            if group != "guard":
                run_group(group, asked, found)
        if "guard" in groups:
            found["guard"] = guard.check(update=asked.update_baseline)
            failed = report.print_guard(found["guard"]) > 0
    except (KeyboardInterrupt, SystemExit):
        print(" stopped; what was measured so far:")
        found["complete"], failed = False, True
    found["seconds"] = round(time.monotonic() - start)
    report.print_table(found["rows"])
    path = report.write_json(asked.out, found)
    if asked.again:
        report.measured_again(asked.out, found)
    written = [path, *charts.write_all(asked.out, found)]
    print(f"{found['seconds']} s; wrote {', '.join(map(str, written))}")
    return int(failed)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "--quick", action="store_true", help="a tenth of the work, and not the slowest rows"
    )
    parser.add_argument("--only", help=f"groups, comma-separated: {', '.join(GROUPS)}, guard")
    parser.add_argument("--match", default="", help="only rows and curves whose name contains this")
    parser.add_argument("--rounds", type=int, help="rounds per row, 3 to 5 if not given")
    parser.add_argument("--out", type=Path, default=Path("bench-results"), help="folder to write")
    parser.add_argument(
        "--no-hiredis", action="store_true", help="redis-py without its optional parser in C"
    )
    parser.add_argument(
        "--again", action="store_true",
        help="put the rows of this run in the place of those of the last complete run",
    )  # fmt: skip
    parser.add_argument(
        "--update-baseline", action="store_true", help="let the guard store what it measures"
    )
    asked = parser.parse_args()
    if asked.rounds is not None and asked.rounds < ROUNDS:
        parser.error(f"--rounds must be at least {ROUNDS}: only medians side by side count")
    if asked.quick and asked.rounds is None:
        asked.rounds = ROUNDS
    if asked.again and not (asked.out / "latest.json").exists():
        parser.error(f"--again needs a complete run in {asked.out}: `make bench` first")
    if unknown := set((asked.only or "store").split(",")) - {*GROUPS, "guard"}:
        parser.error(f"--only does not know {', '.join(sorted(unknown))}")
    return asked


def run_group(group: str, asked: argparse.Namespace, found: dict[str, Any]) -> None:
    """All rows and curves of one module; one that cannot be loaded is a row that failed."""
    try:
        module = importlib.import_module(f"benchmarks.{group}")
        rows, shapes = _found(module, "rows"), _found(module, "curves")
    except Exception as error:  # as in a row
        found["rows"].append(_not_loaded(group, error))
        return
    for row in _matching(rows, asked.match):
        if asked.quick and row.slow and not asked.match:
            print(f"{group}: {row.name} ... not in a quick run")
            continue
        with _announced(f"{group}: {row.name}"):
            result = run(row, rounds=asked.rounds, quick=asked.quick)
        found["rows"].append(report.record(group, result))
    for curve in _matching(shapes, asked.match):
        with _announced(f"{group}: curve {curve.name}"):
            measured = curves.run(curve, rounds=asked.rounds, quick=asked.quick)
        found["curves"].append(curves.record(measured, found["limits"]))
        found["rows"] += curves.bar_records(group, measured)


def _found(module: ModuleType, name: str) -> list[Any]:
    return list(getattr(module, name, list)())


def _matching(items: Sequence[Any], match: str) -> Iterator[Any]:
    return (item for item in items if match in item.name)


class _announced:  # noqa: N801 - reads as a clause
    """Says what runs, and how long it took."""

    def __init__(self, what: str) -> None:
        print(f"{what} ...", end="", flush=True)

    def __enter__(self) -> None:
        self._start = time.monotonic()

    def __exit__(self, *error: object) -> None:
        print(f" {time.monotonic() - self._start:.0f} s", flush=True)


def _not_loaded(group: str, error: Exception) -> dict[str, Any]:
    def nothing(_bench: object) -> Any:
        raise error

    row = Row(f"all rows of {group}", "", Contender("nexo", nothing))
    outcome = Outcome("nexo", failed=f"{type(error).__name__}: {error}")
    return report.record(group, Result(row, [outcome]))


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # Celery's results would look for their servers, which have ended, for minutes
