"""``python -m benchmarks [--quick] [--only store,queue]``: one table, one JSON file, one chart."""

from __future__ import annotations

import argparse
import importlib
import importlib.util
from pathlib import Path

from benchmarks import charts, report
from benchmarks.harness import Row, run

GROUPS = ("store", "pubsub", "queue", "stream", "growth", "pipeline", "service")


def main() -> None:
    """Run the rows asked for and report them."""
    asked = _arguments()
    rounds = asked.rounds or (3 if asked.quick else 5)
    records = []
    for group, row in _rows(asked.only.split(",") if asked.only else GROUPS, asked.match):
        print(f"{group}: {row.name} ...", flush=True)
        records.append(report.record(group, run(row, rounds=rounds, quick=asked.quick)))
    report.print_table(records)
    path = report.write_json(asked.out, records, rounds=rounds, quick=asked.quick)
    charts.write_svg(asked.out / "chart.svg", records)
    print(f"wrote {path} and {asked.out / 'chart.svg'}")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of the work, three rounds")
    parser.add_argument("--only", help=f"groups, comma-separated: {', '.join(GROUPS)}")
    parser.add_argument("--match", default="", help="only rows whose name contains this")
    parser.add_argument("--rounds", type=int, help="rounds per row, at least 3")
    parser.add_argument("--out", type=Path, default=Path("bench-results"), help="folder to write")
    asked = parser.parse_args()
    if asked.rounds is not None and asked.rounds < 3:
        parser.error("--rounds must be at least 3: only medians side by side count")
    if unknown := set((asked.only or "store").split(",")) - set(GROUPS):
        parser.error(f"--only does not know {', '.join(sorted(unknown))}")
    return asked


def _rows(groups: list[str] | tuple[str, ...], match: str) -> list[tuple[str, Row]]:
    found = []
    for group in groups:
        name = f"benchmarks.{group}"
        if importlib.util.find_spec(name) is None:
            print(f"{group}: no rows yet")
            continue
        module = importlib.import_module(name)
        found += [(group, row) for row in module.rows() if match in row.name]
    return found


if __name__ == "__main__":
    main()
