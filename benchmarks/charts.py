"""A run as one SVG: a bar per contender, as long as its share of the row's best.

Written by hand, so that it needs no library and the text stays text.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from benchmarks.report import short

_WIDTH, _LABEL, _BAR, _LINE, _GAP = 860, 190, 470, 20, 34
_STYLE = """
text { font: 13px system-ui, sans-serif; fill: #24292f }
.head { font-weight: 600 }
.soft { fill: #6e7781 }
.ours { fill: #2f6fed }
.peer { fill: #b6bfc9 }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 } .soft { fill: #8b949e } .ours { fill: #5b93ff } .peer { fill: #484f58 }
}
"""


def write_svg(path: Path, records: Sequence[dict[str, Any]]) -> None:
    """Draw every row of a run."""
    body: list[str] = []
    top = 10
    for entry in records:
        drawn, top = _row(entry, top)
        body += drawn
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {top}" role="img" '
        f'aria-label="Nexo compared"><style>{_STYLE}</style>'
    )
    path.write_text("\n".join([head, *body, "</svg>\n"]), encoding="utf-8")


def _row(entry: dict[str, Any], top: int) -> tuple[list[str], int]:
    ran = [contender for contender in entry["contenders"] if "median" in contender]
    longest = max((contender["median"] for contender in ran), default=1.0) or 1.0
    title = f"{entry['group']}: {entry['name']}"
    hint = "lower is better" if entry["lower_is_better"] else ""
    drawn = [_text(0, top + 14, title, "head"), _text(_WIDTH, top + 14, hint, "soft", "end")]
    top += 22
    for number, contender in enumerate(entry["contenders"]):
        drawn += _bar(entry, contender, top, longest, "peer" if number else "ours")
        top += _LINE
    return drawn, top + _GAP - _LINE


def _bar(
    entry: dict[str, Any], contender: dict[str, Any], top: int, longest: float, kind: str
) -> list[str]:
    label = _text(_LABEL - 8, top + 13, contender["name"], "", "end")
    if "median" not in contender:
        return [label, _text(_LABEL, top + 13, f"not run: {contender['missing']}", "soft")]
    width = max(2, round(_BAR * contender["median"] / longest))
    figure = f"{short(contender['median'])} {entry['unit']}"
    if ratio := contender.get("ratio"):
        figure += f"  (ours {ratio['median']:.2g}×)"
    return [
        label,
        f'<rect class="{kind}" x="{_LABEL}" y="{top + 2}" width="{width}" height="14" rx="2"/>',
        _text(_LABEL + width + 6, top + 13, figure, "soft"),
    ]


def _text(x: int, y: int, text: str, kind: str, anchor: str = "start") -> str:
    return f'<text x="{x}" y="{y}" class="{kind}" text-anchor="{anchor}">{escape(text)}</text>'
