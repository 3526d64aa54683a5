"""A curve as SVG: both axes logarithmic, the machine's limits dashed beside the measured lines.

Written by hand, so that it needs no library and the text stays text.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from html import escape
from typing import Any

from benchmarks.report import short

_WIDTH, _HEIGHT = 760, 360
_LEFT, _TOP, _BOTTOM = 60, 56, 54
_RIGHT = 250
"""Room for the names of the lines."""
_LINE_HEIGHT = 17
_COLORS = ("#2f6fed", "#d9480f", "#2b8a3e", "#9c36b5", "#c2255c", "#0b7285", "#946200")
_DARK = ("#74a0ff", "#ff922b", "#69db7c", "#da77f2", "#f783ac", "#3bc9db", "#ffd43b")


def _style() -> str:
    light = "".join(f".s{n} {{ stroke: {c}; fill: {c} }}\n" for n, c in enumerate(_COLORS))
    dark = "".join(f".s{n} {{ stroke: {c}; fill: {c} }}\n" for n, c in enumerate(_DARK))
    return f"""
text {{ font: 12px system-ui, sans-serif; fill: #24292f; stroke: none }}
.head {{ font-size: 14px; font-weight: 600 }}
.soft {{ fill: #6e7781 }}
.grid {{ stroke: #d0d7de; stroke-width: 1 }}
.limit {{ stroke: #6e7781; stroke-width: 1.5; stroke-dasharray: 6 4; fill: none }}
.more {{ stroke-dasharray: 2 3 }}
polyline {{ fill: none !important; stroke-width: 2 }}
.spread {{ opacity: .35; stroke-width: 5 }}
{light}@media (prefers-color-scheme: dark) {{
text {{ fill: #e6edf3 }} .soft {{ fill: #8b949e }} .grid {{ stroke: #30363d }}
.limit {{ stroke: #8b949e }}
{dark}}}
"""


class _Axis:
    """A logarithmic axis from ``low`` to ``high``, drawn from ``start`` to ``end``."""

    def __init__(self, values: Sequence[float], start: float, end: float) -> None:
        self.low = math.floor(math.log10(min(values)) + 1e-9)
        self.high = max(self.low + 1, math.ceil(math.log10(max(values)) - 1e-9))
        self._start = start
        self._scale = (end - start) / (self.high - self.low)

    def __call__(self, value: float) -> float:
        return round(self._start + (math.log10(value) - self.low) * self._scale, 1)

    def ticks(self) -> list[float]:
        step = 1 + (self.high - self.low) // 9
        return [10.0**power for power in range(self.low, self.high + 1, step)]


def svg(curve: dict[str, Any]) -> str:
    """The chart of one recorded curve."""
    lines, limits = curve["lines"], curve["limits"]
    points = [point for line in (*lines, *limits) for point in line["points"]]
    body = [_text(0, 16, curve["title"], "head")]
    if curve["failed"] or not points:
        body.append(_text(_LEFT, _HEIGHT / 2, f"failed: {curve['failed'] or 'no points'}", ""))
    else:
        x = _Axis([point["x"] for point in points], _LEFT, _WIDTH - _RIGHT)
        figures = [point[key] for point in points for key in ("median", "low", "high")
                   if key in point]  # fmt: skip
        y = _Axis(figures, _HEIGHT - _BOTTOM, _TOP)
        body += _axes(curve, x, y)
        for number, limit in enumerate(limits):
            kind = "limit more" if number else "limit"
            body.append(_polyline(limit["points"], x, y, kind))
            body += _legend(f"limit: {limit['name']}", kind, number + len(lines))
        for number, line in enumerate(lines):
            body += _line(line, x, y, number)
    hint = "lower is better" if curve["lower_is_better"] else "higher is better"
    body.append(_text(_WIDTH, 16, hint, "soft", "end"))
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" '
        f'aria-label="{escape(curve["title"])}"><style>{_style()}</style>'
    )
    return "\n".join([head, *body, "</svg>\n"])


def _axes(curve: dict[str, Any], x: _Axis, y: _Axis) -> list[str]:
    right, bottom = _WIDTH - _RIGHT, _HEIGHT - _BOTTOM
    drawn = [_text(_LEFT - 8, _TOP - 10, curve["unit"], "", "start")]
    for tick in y.ticks():
        drawn.append(_rule(_LEFT, y(tick), right, y(tick)))
        drawn.append(_text(_LEFT - 8, y(tick) + 4, short(tick), "soft", "end"))
    for tick in x.ticks():
        drawn.append(_rule(x(tick), _TOP, x(tick), bottom))
        drawn.append(_text(x(tick), bottom + 18, short(tick), "soft", "middle"))
    drawn.append(_text((_LEFT + right) / 2, bottom + 40, curve["x"], "", "middle"))
    return drawn


def _rule(x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line class="grid" x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}"/>'


def _line(line: dict[str, Any], x: _Axis, y: _Axis, number: int) -> list[str]:
    kind = f"s{number % len(_COLORS)}"
    drawn = [_polyline(line["points"], x, y, kind)]
    for point in line["points"]:
        at = x(point["x"])
        spread = f'<line class="spread {kind}" x1="{at}" x2="{at}" y1="{{}}" y2="{{}}"/>'
        drawn.append(spread.format(y(point["low"]), y(point["high"])))
        drawn.append(f'<circle class="{kind}" cx="{at}" cy="{y(point["median"])}" r="3"/>')
    return drawn + _legend(line["name"], kind, number)


def _polyline(
    points: Sequence[dict[str, float]], x: Callable[[float], float], y: Callable[[float], float],
    kind: str,
) -> str:  # fmt: skip
    places = " ".join(f"{x(point['x'])},{y(point['median'])}" for point in points)
    return f'<polyline class="{kind}" points="{places}"/>'


def _legend(name: str, kind: str, number: int) -> list[str]:
    left, top = _WIDTH - _RIGHT + 16, _TOP + 6 + number * _LINE_HEIGHT
    return [
        f'<line class="{kind}" x1="{left}" y1="{top}" x2="{left + 18}" y2="{top}" '
        f'stroke-width="2"/>',
        _text(left + 24, top + 4, name, ""),
    ]


def _text(x: float, y: float, text: str, kind: str, anchor: str = "start") -> str:
    return f'<text x="{x}" y="{y}" class="{kind}" text-anchor="{anchor}">{escape(text)}</text>'
