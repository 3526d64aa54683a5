"""Results as a table on the terminal and as JSON for the docs and the chart."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
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
        "contenders": [
            _contender(result, outcome) | {"bar": contender.bar}
            for contender, outcome in zip([row.ours, *row.peers], result.outcomes, strict=True)
        ],
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
        reason = "failed" if outcome.failed else "missing"
        return {"name": outcome.name, reason: outcome.failed or outcome.missing}
    plain: dict[str, Any] = {
        "name": outcome.name,
        "settings": outcome.settings,
        "rounds": len(outcome.figures),
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


def print_machine(run: dict[str, Any]) -> None:
    """What is measured on, with what, and its limits."""
    about = run["machine"]
    print(machine_text(about))
    print("servers:", ", ".join(f"{name} {version}" for name, version in about["servers"].items()))
    print("clients:", ", ".join(f"{name} {version}" for name, version in about["clients"].items()))
    if run["limits"]:
        print("limits:", limits_text(run["limits"]))


def machine_text(about: dict[str, Any]) -> str:
    """The machine in a line."""
    return (
        f"{about['cores']} cores of {about['cpu']}, {about['memory_gib']} GiB, "
        f"{about['system']}, Python {about['python']}"
    )


def limits_text(limits: dict[str, float]) -> str:
    """The machine's limits in a line."""
    return (
        f"system call {limits['syscall_us']:.2g} µs, "
        f"loopback round trip {limits['round_trip_us']:.3g} µs and "
        f"{limits['loopback_bytes_per_s'] / 1e9:.2g} GB/s, "
        f"small fsync {limits['fsync_us']:.3g} µs, "
        f"large write and fsync {limits['disk_bytes_per_s'] / 1e9:.2g} GB/s"
    )


def print_guard(found: dict[str, Any]) -> int:
    """The guard's verdicts; how many paths got slower."""
    table = Table(title="Hot paths against the baseline")
    for column in ("path", "figure", "baseline", "now", "change", "tolerance", "verdict"):
        table.add_column(column, justify="left" if column in {"path", "figure"} else "right")
    for verdict in found["verdicts"]:
        table.add_row(*_guard_cells(verdict))
    _console().print(table)
    return sum(verdict["verdict"] == "slower" for verdict in found["verdicts"])


def _guard_cells(verdict: dict[str, Any]) -> list[str]:
    known = "baseline" in verdict
    return [
        verdict["path"],
        verdict["figure"],
        f"{verdict['baseline']:.4g}" if known else "",
        f"{verdict['now']:.4g}",
        f"{verdict['change']:+.1%}" if known else "",
        f"{verdict['tolerance']:.0%}" if known else "",
        f"[red]{verdict['verdict']}[/]" if verdict["verdict"] == "slower" else verdict["verdict"],
    ]


def _console() -> Console:
    console = Console()
    if not console.is_terminal:
        console.width = 150
    return console


def print_table(records: Sequence[dict[str, Any]]) -> None:
    """Ours, each peer, the ratio and its spread, one line per peer."""
    if not records:
        return
    table = Table(title="Nexo side by side (median of rounds; spread is lowest..highest ratio)")
    for column in ("work", "contender"):
        table.add_column(column, overflow="fold")
    for column in ("figure", "ratio", "spread", "CPU s client/server", "bar", "reached"):
        table.add_column(column, justify="right")
    for entry in records:
        for number, contender in enumerate(entry["contenders"]):
            table.add_row(*_cells(entry, contender, first=number == 0))
        table.add_section()
    _console().print(table)


def _cells(entry: dict[str, Any], contender: dict[str, Any], *, first: bool) -> list[str]:
    work = work_text(entry) if first else ""
    if first and entry["durability"]:
        work += f"\n[dim]{entry['durability']}[/]"
    name = contender["name"]
    if contender.get("settings"):
        name += f"\n[dim]{contender['settings']}[/]"
    if "median" not in contender:
        bar = (bar_text(entry), _MARKS[entry["reached"]]) if first else ("", "")
        return [work, name, f"[yellow]{escape(why_not(contender))}[/]", "", "", "", *bar]
    ratio = contender.get("ratio")
    return [
        work,
        name,
        f"{short(contender['median'])} {entry['unit']}",
        f"{ratio['median']:.2f}×" if ratio else "",
        f"{ratio['low']:.2f}..{ratio['high']:.2f}" if ratio else "",
        f"{contender['client_cpu_s']:.2f}/{contender['server_cpu_s']:.2f}",
        bar_text(entry) if first else "",
        _MARKS[entry["reached"]] if first else "",
    ]


def work_text(entry: dict[str, Any]) -> str:
    """A row's name, which says what it belongs to."""
    name, group = entry["name"], entry["group"]
    return name if group in {"growth", "scaling"} or group in name else f"{group}: {name}"


def why_not(contender: dict[str, Any]) -> str:
    """Why a contender has no figures."""
    if "failed" in contender:
        return f"failed: {contender['failed']}"
    return f"not run: {contender['missing']}"


def bar_text(entry: dict[str, Any]) -> str:
    """The bar as the table shows it."""
    sign = "≤" if entry["lower_is_better"] else "≥"
    if entry["bar"] is not None:
        return f"{sign} {entry['bar']:g}×"
    if own := [peer for peer in entry["contenders"] if peer.get("bar") is not None]:
        return ", ".join(f"{sign} {peer['bar']:g}× {peer['name']}" for peer in own)
    return f"{sign} {entry['limit']:g} {entry['unit']}" if entry["limit"] is not None else ""


def short(figure: float) -> str:
    """A figure with three digits: ``1.23 M``, ``45.6 k``."""
    for factor, suffix in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if abs(figure) >= factor:
            return f"{figure / factor:.3g}{suffix}"
    return f"{figure:.3g}"


def stamp() -> str:
    """The time as a file's name has it."""
    return time.strftime("%Y-%m-%dT%H-%M-%S", time.gmtime())


def measured_again(folder: Path, run: dict[str, Any]) -> None:
    """Replace rows of the last complete run, which then says so."""
    path = folder / "latest.json"
    complete = json.loads(path.read_text(encoding="utf-8"))
    new = {(row["group"], row["name"]): row for row in run["rows"]}
    complete["rows"] = [new.get((row["group"], row["name"]), row) for row in complete["rows"]]
    complete.setdefault("again", []).append({"time": run["time"], "names": [n for _, n in new]})
    path.write_text(json.dumps(complete, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def write_json(folder: Path, run: dict[str, Any]) -> Path:
    """The run under its time; a complete one also as ``latest.json``, which the docs show."""
    text = json.dumps(run, indent=1, ensure_ascii=False) + "\n"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{run['time']}.json"
    path.write_text(text, encoding="utf-8")
    if run["complete"]:
        (folder / "latest.json").write_text(text, encoding="utf-8")
    return path
