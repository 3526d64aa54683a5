"""Draws the diagrams of the documentation as SVG: a sequence of messages, or boxes with arrows.

`pages` of tools/docs.py writes them, so that ``make check`` finds one that is stale. They are
drawn here, not in the browser, since the site fetches nothing from elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from pathlib import Path

INK, PALE, BLUE, RED, PAPER = "#1f2430", "#8a93a6", "#3f51b5", "#c62828", "#ffffff"
COLUMN, ROW, TOP = 190, 44, 64


@dataclass(frozen=True)
class Step:
    """One message from an actor to another, or what one of them does if both are the same."""

    source: int
    target: int
    text: str
    bad: bool = False


def _text(x: float, y: float, text: str, *, color: str = INK, anchor: str = "middle") -> str:
    return (
        f'<text x="{x:g}" y="{y:g}" fill="{color}" text-anchor="{anchor}">'
        f"{escape(text, quote=False)}</text>"
    )


def _box(x: float, y: float, width: float, height: float, lines: list[str]) -> str:
    shape = (
        f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="6" '
        f'fill="#eef0fb" stroke="{BLUE}"/>'
    )
    first = y + height / 2 + 5 - (len(lines) - 1) * 9
    return shape + "".join(
        _text(x + width / 2, first + 18 * number, line, color=INK if number == 0 else "#555d70")
        for number, line in enumerate(lines)
    )


def _arrow(x1: float, y1: float, x2: float, y2: float, color: str = INK) -> str:
    head = "bad" if color == RED else "head"
    return (
        f'<line x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}" stroke="{color}" '
        f'stroke-width="1.4" marker-end="url(#{head})"/>'
    )


def _svg(width: float, height: float, title: str, body: str) -> str:
    markers = "".join(
        f'<marker id="{name}" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" '
        f'markerHeight="7" orient="auto-start-reverse"><path d="M0 0L10 5L0 10z" fill="{color}"/>'
        "</marker>"
        for name, color in (("head", INK), ("bad", RED))
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" '
        f'width="{width:g}" font-family="system-ui, sans-serif" font-size="13" role="img">'
        f"<title>{escape(title, quote=False)}</title><defs>{markers}</defs>"
        f'<rect width="100%" height="100%" rx="8" fill="{PAPER}"/>{body}</svg>\n'
    )


def sequence(title: str, actors: list[str], steps: list[Step]) -> str:
    """Actors side by side, and their messages from top to bottom."""
    width, height = COLUMN * len(actors), TOP + ROW * len(steps) + 24
    places = [COLUMN * (number + 0.5) for number in range(len(actors))]
    body = ""
    for place, actor in zip(places, actors, strict=True):
        body += f'<line x1="{place:g}" y1="44" x2="{place:g}" y2="{height - 10:g}" '
        body += f'stroke="{PALE}" stroke-dasharray="3 4"/>'
        body += _box(place - 75, 12, 150, 32, [actor])
    for number, step in enumerate(steps):
        body += _step(step, places, TOP + ROW * number + 26)
    return _svg(width, height, title, body)


def _step(step: Step, places: list[float], y: float) -> str:
    color = RED if step.bad else INK
    start, end = places[step.source], places[step.target]
    if step.source == step.target:
        size = 7.2 * len(step.text) + 12
        back = f'<rect x="{start - size / 2:g}" y="{y - 18:g}" width="{size:g}" height="24" '
        back += f'rx="4" fill="#fff8e1" stroke="{color}"/>'
        return back + _text(start, y - 2, step.text, color=color)
    gap = 4 if end > start else -4
    line = _arrow(start + gap, y, end - gap, y, color)
    return line + _text((start + end) / 2, y - 6, step.text, color=color)


def architecture() -> str:
    """The processes of a server, and what is around them."""
    body = ""
    for number, (name, kind) in enumerate(
        (("Python clients", "sync, async"), ("other clients", "TypeScript"),
         ("browser", "dashboard"), ("Spark, DuckDB", "pipeline, SQL"))
    ):  # fmt: skip
        body += _box(20 + 190 * number, 16, 160, 50, [name, kind])
    body += _box(20, 126, 350, 50, ["gate, port 7654", "hands each connection to its broker"])
    body += _box(400, 126, 160, 50, ["admin, port 8080", "HTTP API, metrics"])
    body += _box(590, 126, 160, 50, ["health, port 8081", "/health, /ready"])
    for number, (name, what) in enumerate(
        (("Store", "memory, snapshot"), ("Pub/Sub", "retained messages"),
         ("Queue", "jobs, leases"), ("Stream", "log, groups"))
    ):  # fmt: skip
        x = 20 + 190 * number
        body += _box(x, 236, 160, 62, [name, what, "own process, own loop"])
        body += _box(x, 352, 160, 44, ["own folder", "checksummed log"])
        body += _arrow(x + 80, 298, x + 80, 352)
        body += _arrow(195, 176, x + 80, 236)
    body += _arrow(100, 66, 150, 126) + _arrow(290, 66, 240, 126) + _arrow(480, 66, 480, 126)
    body += _box(590, 446, 160, 50, ["the lake", "Iceberg tables"])
    body += _arrow(670, 396, 670, 446)
    body += f'<path d="M758 41 H772 V471 H752" fill="none" stroke="{INK}" stroke-width="1.4" '
    body += 'marker-end="url(#head)"/>'
    said = "The supervisor starts every process, and restarts one that dies."
    body += _text(20, 476, said, anchor="start")
    return _svg(786, 512, "The processes of a server", body)


SEQUENCES: dict[str, tuple[str, list[str], list[Step]]] = {
    "file-async": (
        "file_async: a killed process loses nothing",
        ["client", "broker", "system's cache", "disk"],
        [
            Step(0, 1, "publish"),
            Step(1, 2, "append"),
            Step(1, 0, "offset"),
            Step(1, 1, "kill -9: the cache stays", bad=True),
            Step(2, 3, "sync within 50 ms"),
        ],
    ),
    "file-sync": (
        "file_sync: a power cut loses nothing acknowledged",
        ["client", "broker", "system's cache", "disk"],
        [
            Step(0, 1, "push"),
            Step(1, 2, "append, with others"),
            Step(2, 3, "fsync, once for all"),
            Step(1, 0, "id, after the fsync"),
            Step(3, 3, "power cut: it is there", bad=True),
        ],
    ),
    "lease": (
        "A job is leased to one worker at a time",
        ["worker A", "queue", "worker B"],
        [
            Step(0, 1, "pop"),
            Step(1, 0, "job, attempt 1"),
            Step(0, 0, "hangs or dies", bad=True),
            Step(1, 1, "the lease ends"),
            Step(1, 2, "job, attempt 2"),
            Step(2, 1, "ack: done, on disk"),
            Step(0, 1, "late ack: refused", bad=True),
        ],
    ),
    "dead-letters": (
        "A job that always fails ends among the dead letters",
        ["worker", "queue", "dead letters"],
        [
            Step(1, 0, "job, attempt 1"),
            Step(0, 1, "nack: the error", bad=True),
            Step(1, 1, "waits for its back-off"),
            Step(1, 0, "job, last attempt"),
            Step(0, 1, "nack: the error", bad=True),
            Step(1, 2, "moved with its reason"),
            Step(2, 1, "replay, when you say so"),
        ],
    ),
    "shared-group": (
        "A shared group acks record by record",
        ["consumer A", "group", "consumer B"],
        [
            Step(1, 0, "records 0, 2"),
            Step(1, 2, "record 1"),
            Step(0, 1, "ack 2, then 0"),
            Step(1, 1, "floor 1; 2 is done too"),
            Step(2, 2, "is killed", bad=True),
            Step(1, 0, "record 1 again, at once"),
            Step(0, 1, "ack 1: floor 3"),
        ],
    ),
    "ordered-group": (
        "An ordered group gives each partition to one member",
        ["member A", "group", "member B"],
        [
            Step(0, 1, "join"),
            Step(1, 0, "partitions 0 to 3"),
            Step(2, 1, "join: generation 2"),
            Step(0, 1, "commit, give up 2 and 3"),
            Step(1, 2, "2 and 3, from the commit"),
            Step(0, 1, "commit of generation 1", bad=True),
            Step(1, 0, "fenced: not the owner", bad=True),
        ],
    ),
    "transaction": (
        "A transaction becomes visible at once, or never",
        ["program", "stream broker", "reader"],
        [
            Step(1, 0, "input record"),
            Step(0, 1, "publish to two streams"),
            Step(2, 1, "read: not shown yet"),
            Step(0, 1, "commit with the ack"),
            Step(1, 1, "one entry on disk"),
            Step(1, 2, "both records"),
            Step(0, 0, "killed before? nothing", bad=True),
        ],
    ),
    "slow-subscriber": (
        "A slow subscriber costs nobody else anything",
        ["publisher", "pub/sub", "fast", "slow"],
        [
            Step(0, 1, "publish"),
            Step(1, 2, "encoded once, sent"),
            Step(1, 3, "the same bytes"),
            Step(3, 3, "does not read", bad=True),
            Step(1, 1, "its queue is full: drop, count"),
            Step(1, 2, "goes on at full speed"),
        ],
    ),
    "lake": (
        "Every record is in the table once",
        ["stream", "Spark task", "Iceberg table"],
        [
            Step(0, 1, "offsets 0 to 999"),
            Step(1, 2, "writes data files"),
            Step(1, 1, "killed: files unused", bad=True),
            Step(0, 1, "offsets 0 to 999 again"),
            Step(1, 2, "commit: files and offsets"),
            Step(2, 0, "hot log may free 0 to 999"),
        ],
    ),
}
"""One picture per guarantee, by the name of its file."""


def pages(root: Path) -> Iterator[tuple[Path, str]]:
    """Every diagram with its text."""
    images = root / "docs" / "images"
    yield images / "architecture.svg", architecture()
    for name, (title, actors, steps) in SEQUENCES.items():
        yield images / f"guarantee-{name}.svg", sequence(title, actors, steps)
