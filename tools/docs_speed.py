"""Speed as the README and the performance page show it: from one complete benchmark run.

Tables go between markers, charts to ``docs/images``; both only from
``bench-results/latest.json``, which ``make bench`` writes and partial runs leave alone.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks import charts
from benchmarks.report import bar_text, limits_text, machine_text, short, why_not, work_text
from tools.docs_text import between, table

START = "<!-- speed: written by tools/docs.py from `make bench` -->"
MISSED = "Bars that are missed"
_MISSED_ANCHOR = MISSED.lower().replace(" ", "-")
FRONT = (
    "store GET, 50 tasks",
    "pubsub: fan-out 1 → 100, raw sockets, bursts of 100",
    "queue push + pop + ack, batches of 100",
    "stream produce, batches of 100, file_async",
    "stream single publish, p50, file_sync",
    "stream consume in a group with acks",
    "frameworks: Celery, tasks sent one by one and run by 2 processes",
    "pipeline: stream to Iceberg, 100 B records",
)
"""The rows of the README; the performance page has all."""
TIE = (0.9, 1.1)
"""Ratios between these are called a tie: the machine's noise is as large."""


def pages(root: Path) -> Iterator[tuple[Path, str]]:
    """What a run changes; nothing where there was none."""
    results = root / "bench-results" / "latest.json"
    if not results.exists():
        return
    run = json.loads(results.read_text(encoding="utf-8"))
    readme, performance = root / "README.md", root / "docs" / "design" / "performance.md"
    yield readme, between(readme.read_text(encoding="utf-8"), START, "speed", front_page(run))
    told = performance.read_text(encoding="utf-8")
    yield performance, between(told, START, "speed", performance_page(run))
    for name, drawn in charts.charts(run):
        yield root / "docs" / "images" / name, drawn
    for work in unexplained(told, run):
        print(f"performance.md does not explain why this is missed: {work}", file=sys.stderr)


def unexplained(page: str, run: dict[str, Any]) -> list[str]:
    """Rows that missed their bar and that the page does not name in its section on them."""
    section = re.split(r"\n## ", page.partition(f"## {MISSED}")[2])[0]
    missed = (entry["name"] for entry in run["rows"] if entry["reached"] is False)
    return [name for name in missed if name not in section]


_HEAD = ("work", "Nexo", "best peer", "ratio (spread)", "CPU s, Nexo", "CPU s, peer", "bar")


# -- the front page --------------------------------------------------------------------


def front_page(run: dict[str, Any]) -> str:
    """The chart, and the rows that stand for the rest."""
    named = {work_text(entry): entry for entry in run["rows"]}
    rows = [_row(named[name])[:4] for name in FRONT if name in named]
    parts = [
        "![Nexo against the best peer of each row](docs/images/speed.svg)\n",
        table(_HEAD[:4], rows),
    ]
    return "\n".join(parts)


def lost(entry: dict[str, Any]) -> bool:
    """Whether the best peer is better at this, or the bar is missed: such rows come first."""
    ahead = charts.advantage(entry)
    return entry["reached"] is False or (ahead is not None and ahead < 1)


def _source(run: dict[str, Any]) -> str:
    command = "make bench" if run["command"] == "python -m benchmarks" else run["command"]
    servers = ", ".join(f"{name} {version}" for name, version in run["machine"]["servers"].items())
    clients = ", ".join(f"{name} {version}" for name, version in run["machine"]["clients"].items())
    return (
        f"`{command}`, {run['time'][:10]}, {run['seconds'] / 60:.0f} minutes on "
        f"{machine_text(run['machine'])}. Its limits in the same run: "
        f"{limits_text(run['limits'])}. "
        f"Servers: {servers}. Clients: {clients}.{_again(run)}\n"
    )


def _again(run: dict[str, Any]) -> str:
    """Which rows were measured after the run."""
    later = [name for each in run.get("again", []) for name in each["names"]]
    return f" Measured again after a change: {'; '.join(later)}." if later else ""


def _row(entry: dict[str, Any]) -> tuple[str, ...]:
    ours = entry["contenders"][0]
    peer = next((c for c in entry["contenders"] if c["name"] == entry["best_peer"]), None)
    work = work_text(entry) + (f" ({entry['durability']})" if entry["durability"] else "")
    if "median" not in ours:
        return work, why_not(ours), "", "", "", "", _bar(entry)
    figure = f"{short(ours['median'])} {entry['unit']}"
    if peer is None:
        spread = f"({short(ours['low'])}–{short(ours['high'])})"  # noqa: RUF001
        return work, figure, _missing(entry), spread, _cpu(ours), "", _bar(entry)
    theirs = f"{peer['name']}: {short(peer['median'])} {entry['unit']}{_settings(peer)}"
    return (
        work,
        figure,
        theirs,
        _ratio(peer["ratio"]),
        _cpu(ours),
        _cpu(peer),
        _bar(entry),
    )


def _ratio(ratio: dict[str, float]) -> str:
    median, low, high = (_short(ratio[name]) for name in ("median", "low", "high"))
    tie = "a tie, " if TIE[0] <= ratio["median"] <= TIE[1] else ""
    return f"{tie}{median}× ({low}–{high})"  # noqa: RUF001


def _short(ratio: float) -> str:
    return f"{ratio:.2g}" if ratio < 10 else f"{ratio:,.0f}"


def _settings(peer: dict[str, Any]) -> str:
    return f" ({peer['settings']})" if peer["settings"] else ""


def _missing(entry: dict[str, Any]) -> str:
    return "; ".join(f"{peer['name']} {why_not(peer)}" for peer in entry["contenders"][1:])


def _cpu(contender: dict[str, Any]) -> str:
    client, server = contender["client_cpu_s"], contender["server_cpu_s"]
    return f"{client:.2g} + {server:.2g}" if client + server else ""


def _bar(entry: dict[str, Any]) -> str:
    match entry["reached"]:
        case True:
            return f"{bar_text(entry)} met".strip()
        case False:
            return f"{bar_text(entry)} [missed](#{_MISSED_ANCHOR})".strip()
    return ""


# -- the performance page --------------------------------------------------------------


def performance_page(run: dict[str, Any]) -> str:
    """Every row, every curve, and every peer with what it was told about durability."""
    entries = sorted(run["rows"], key=lambda entry: not lost(entry))
    rows = [
        (work_text(entry), contender["name"], contender["settings"], _figure(entry, contender))
        for entry in run["rows"]
        if len(entry["contenders"]) > 1
        for contender in entry["contenders"][1:]
        if "median" in contender
    ]
    parts = [
        _source(run),
        table(_HEAD, [_row(entry) for entry in entries]),
        "Spread: the lowest and highest ratio of all rounds, which alternate between the "
        "contenders. CPU s: seconds of client + server in the median round; contenders may do "
        "different amounts of work, so only within a column of one row do they add up.\n",
        *(_image(curve) for curve in run["curves"]),
        "Every peer, its settings, and our figure divided by its:\n",
        table(("work", "peer", "settings", "ratio (spread)"), rows),
    ]
    return "\n".join(parts)


def _figure(entry: dict[str, Any], contender: dict[str, Any]) -> str:
    return _ratio(contender["ratio"]) if "ratio" in contender else ""


def _image(curve: dict[str, Any]) -> str:
    return f"![{curve['title']}](../images/scaling-{curve['name']}.svg)\n"
