"""Results as a table on the terminal and as JSON for the docs and the chart."""

from __future__ import annotations

import json
import os
import platform
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.harness import Outcome, Result

_MARKS = {True: "[green]yes[/]", False: "[red]no[/]", None: ""}


def record(group: str, result: Result) -> dict[str, Any]:
    """One row's result as plain values."""
    row, best = result.row, result.best_peer()
    return {
        "group": group,
        "name": row.name,
        "unit": row.unit,
        "durability": row.durability,
        "lower_is_better": row.lower_is_better,
        "bar": row.bar,
        "limit": row.limit,
        "best_peer": best.name if best else None,
        "reached": _reached(result, best),
        "contenders": [_contender(result, outcome) for outcome in result.outcomes],
    }


def _reached(result: Result, best: Outcome | None) -> bool | None:
    row, ours = result.row, result.outcomes[0]
    checks: list[bool | None]
    checks = [row.reached(ours.median, row.limit)] if ours.figures else [False]
    if best is not None:
        checks.append(row.reached(statistics.median(result.ratios(best)), row.bar))
    for peer, outcome in zip(row.peers, result.outcomes[1:], strict=True):
        if outcome.figures and ours.figures:
            checks.append(row.reached(statistics.median(result.ratios(outcome)), peer.bar))
    known = [check for check in checks if check is not None]
    return all(known) if known else None


def _contender(result: Result, outcome: Outcome) -> dict[str, Any]:
    if not outcome.figures:
        return {"name": outcome.name, "missing": outcome.missing}
    plain: dict[str, Any] = {
        "name": outcome.name,
        "median": outcome.median,
        "low": min(outcome.figures),
        "high": max(outcome.figures),
        "client_cpu_s": statistics.median(outcome.client_cpu_s),
        "server_cpu_s": statistics.median(outcome.server_cpu_s),
    }
    if outcome is not result.outcomes[0] and result.outcomes[0].figures:
        ratios = result.ratios(outcome)
        plain["ratio"] = {
            "median": statistics.median(ratios), "low": min(ratios), "high": max(ratios),
        }  # fmt: skip
    return plain


def print_table(records: Sequence[dict[str, Any]]) -> None:
    """Ours, each peer, the ratio and its spread, one line per peer."""
    table = Table(title="Nexo side by side (median of rounds; spread is lowest..highest ratio)")
    for column in ("work", "contender"):
        table.add_column(column, overflow="fold")
    for column in ("figure", "ratio", "spread", "CPU s client/server", "bar", "reached"):
        table.add_column(column, justify="right")
    for entry in records:
        for number, contender in enumerate(entry["contenders"]):
            table.add_row(*_cells(entry, contender, first=number == 0))
        table.add_section()
    console = Console()
    if not console.is_terminal:
        console.width = 150
    console.print(table)


def _cells(entry: dict[str, Any], contender: dict[str, Any], *, first: bool) -> list[str]:
    work = f"{entry['group']}: {entry['name']}" if first else ""
    if first and entry["durability"]:
        work += f"\n[dim]{entry['durability']}[/]"
    if "missing" in contender:
        return [work, contender["name"], f"[yellow]not run: {contender['missing']}[/]", *[""] * 5]
    ratio = contender.get("ratio")
    return [
        work,
        contender["name"],
        f"{short(contender['median'])} {entry['unit']}",
        f"{ratio['median']:.2f}×" if ratio else "",
        f"{ratio['low']:.2f}..{ratio['high']:.2f}" if ratio else "",
        f"{contender['client_cpu_s']:.2f}/{contender['server_cpu_s']:.2f}",
        bar_text(entry) if first else "",
        _MARKS[entry["reached"]] if first else "",
    ]


def bar_text(entry: dict[str, Any]) -> str:
    """The bar as the table shows it."""
    sign = "≤" if entry["lower_is_better"] else "≥"
    if entry["bar"] is not None:
        return f"{sign} {entry['bar']:g}×"
    return f"{sign} {entry['limit']:g} {entry['unit']}" if entry["limit"] is not None else ""


def short(figure: float) -> str:
    """A figure with three digits: ``1.23 M``, ``45.6 k``."""
    for factor, suffix in ((1e6, " M"), (1e3, " k")):
        if abs(figure) >= factor:
            return f"{figure / factor:.3g}{suffix}"
    return f"{figure:.3g}"


def write_json(
    folder: Path, records: Sequence[dict[str, Any]], *, rounds: int, quick: bool
) -> Path:
    """The whole run, under its time and as ``latest.json``."""
    stamp = time.strftime("%Y-%m-%dT%H-%M-%S", time.gmtime())
    run = {
        "time": stamp,
        "quick": quick,
        "rounds": rounds,
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "rows": list(records),
    }
    text = json.dumps(run, indent=1, ensure_ascii=False) + "\n"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "latest.json").write_text(text, encoding="utf-8")
    path = folder / f"{stamp}.json"
    path.write_text(text, encoding="utf-8")
    return path
