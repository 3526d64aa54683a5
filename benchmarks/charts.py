"""A run as SVG: one chart of all ratios, and one per curve.

Written by hand, so that it needs no library and the text stays text.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path
from typing import Any

from benchmarks import curve_charts
from benchmarks.report import short, why_not, work_text

_WIDTH, _LABEL, _BAR, _LINE = 900, 400, 300, 22
_STYLE = """
text { font: 13px system-ui, sans-serif; fill: #24292f }
.head { font-weight: 600 }
.soft { fill: #6e7781 }
.met { fill: #2f6fed }
.missed { fill: #d9480f }
.even { stroke: #6e7781; stroke-width: 1 }
.goal { stroke: #24292f; stroke-width: 2 }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 } .soft { fill: #8b949e } .met { fill: #5b93ff } .missed { fill: #ff922b }
  .even { stroke: #8b949e } .goal { stroke: #e6edf3 }
}
"""


def charts(run: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Every chart of a run, by file name."""
    yield "speed.svg", speed(run["rows"])
    for curve in run["curves"]:
        yield f"scaling-{curve['name']}.svg", curve_charts.svg(curve)


def write_all(folder: Path, run: dict[str, Any]) -> list[Path]:
    """All charts into one folder."""
    written = []
    for name, text in charts(run):
        (folder / name).write_text(text, encoding="utf-8")
        written.append(folder / name)
    return written


def speed(records: Sequence[dict[str, Any]]) -> str:
    """How many times faster than the best peer, row by row; a tick is the bar."""
    rows = [entry for entry in records if len(entry["contenders"]) > 1]
    advantages = [ahead for entry in rows if (ahead := advantage(entry))]
    goals = [goal for entry in rows if (goal := _goal(entry))]
    scale = _Scale([*advantages, *goals, 1.0])
    height = 40 + _LINE * len(rows)
    title = "Nexo against the best peer: times faster, or times less of what should be little"
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" role="img" '
        f'aria-label="{escape(title)}"><style>{_STYLE}</style>'
    )
    even = f'<line class="even" x1="{scale(1)}" x2="{scale(1)}" y1="26" y2="{height - 8}"/>'
    body = [_text(0, 14, title, "head"), even]
    for number, entry in enumerate(rows):
        body += _row(entry, 30 + number * _LINE, scale)
    return "\n".join([head, *body, "</svg>\n"])


class _Scale:
    """Logarithmic, so that twice as fast and half as fast look alike."""

    def __init__(self, ratios: Sequence[float]) -> None:
        low, high = math.log10(min(ratios)), math.log10(max(ratios))
        self._low = low
        self._factor = _BAR / ((high - low) or 1.0)

    def __call__(self, ratio: float) -> float:
        return round(_LABEL + (math.log10(ratio) - self._low) * self._factor, 1)


def _best(entry: dict[str, Any]) -> dict[str, Any] | None:
    named = (c for c in entry["contenders"][1:] if c["name"] == entry["best_peer"])
    return next((c for c in named if "ratio" in c), None)


def advantage(entry: dict[str, Any]) -> float | None:
    """How many times better we are than the best peer; None if there is none."""
    best = _best(entry)
    if best is None:
        return None
    ratio: float = best["ratio"]["median"]
    return 1 / ratio if entry["lower_is_better"] else ratio


def _goal(entry: dict[str, Any]) -> float | None:
    if entry["bar"] is None:
        return None
    bar: float = entry["bar"]
    return 1 / bar if entry["lower_is_better"] else bar


def _row(entry: dict[str, Any], top: int, scale: _Scale) -> list[str]:
    ahead, goal = advantage(entry), _goal(entry)
    drawn = [_text(_LABEL - 8, top + 13, work_text(entry), "", "end")]
    if ahead is None:
        reasons = (why_not(c) for c in entry["contenders"] if "median" not in c)
        return [*drawn, _text(_LABEL, top + 13, next(reasons, "no figures"), "soft")]
    start, end = sorted((scale(1), scale(ahead)))
    kind = "missed" if entry["reached"] is False else "met"
    drawn.append(
        f'<rect class="{kind}" x="{start}" y="{top + 2}" width="{max(2.0, end - start):.1f}" '
        f'height="14" rx="2"/>'
    )
    if goal is not None:
        at = scale(goal)
        drawn.append(f'<line class="goal" x1="{at}" x2="{at}" y1="{top}" y2="{top + 18}"/>')
    edge = max(end, scale(goal) if goal else end)
    return [*drawn, _text(edge + 6, top + 13, f"{_times(ahead)} {entry['best_peer']}", "soft")]


def _times(advantage: float) -> str:
    return f"{short(advantage)}×"


def _text(x: float, y: float, text: str, kind: str, anchor: str = "start") -> str:
    return f'<text x="{x}" y="{y}" class="{kind}" text-anchor="{anchor}">{escape(text)}</text>'
