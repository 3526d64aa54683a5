"""What commands print: tables and sentences for people, JSON lines for programs.

Results go to standard output, everything about the work (progress, notes) to
standard error, so that a pipe sees results only.
"""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, is_dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from nexo.cli.options import terms

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress
    from rich.table import Table

_A_TIME_MS = 10**12
"""Milliseconds from here on are a point in time, since no duration is that long."""

# ruff: noqa: PLC0415 - rich is slow to import, and JSON output does not need it


def rows(found: Iterable[Mapping[str, object]], columns: Sequence[str], empty: str = "") -> None:
    """A table with these columns, or one JSON object (with all fields) per row.

    ``empty`` is said, on standard error, instead of a table without rows.
    """
    if terms().as_json:
        for row in found:
            line(row)
        return
    kept = list(found)
    if kept:
        _print_table(kept, columns)
    elif empty:
        note(empty)


def _print_table(kept: list[Mapping[str, object]], columns: Sequence[str]) -> None:
    console().print(table(kept, columns))


def console() -> Console:
    """Standard output for what rich draws."""
    from rich.console import Console

    made = Console(markup=False, highlight=False)
    if not made.is_terminal:
        made.width = 10_000  # a pipe has no width to wrap at
    return made


def table(kept: Sequence[Mapping[str, object]], columns: Sequence[str]) -> Table:
    """A table with these columns; numbers are set to the right."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    made = Table(box=SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        numeric = all(isinstance(row.get(column), int | float | None) for row in kept)
        made.add_column(column.replace("_", " "), justify="right" if numeric else "left")
    for row in kept:
        made.add_row(*(Text(_cell(row.get(column), column)) for column in columns))
    return made


def fields(found: Mapping[str, object]) -> None:
    """One thing: a line per field, or one JSON object."""
    if terms().as_json:
        line(found)
        return
    width = max((len(name) for name in found), default=0)
    for name, item in found.items():
        click.echo(f"{name.replace('_', ' '):<{width}}  {_cell(item, name)}")


def value(found: object) -> None:
    """A stored value as it is: text as text, bytes as bytes, anything else as JSON."""
    if terms().as_json:
        line({"value": found})
    elif isinstance(found, bytes):
        sys.stdout.buffer.write(found)
    elif isinstance(found, str):
        click.echo(found)
    else:
        click.echo(json.dumps(found, indent=2, ensure_ascii=False, default=_plain))


def done(sentence: str, **facts: object) -> None:
    """What was done: a sentence, or its facts as one JSON object."""
    if terms().as_json:
        line(facts)
    else:
        click.echo(sentence)


def line(found: Mapping[str, object]) -> None:
    """One JSON object on a line of its own, written out at once."""
    click.echo(json.dumps(dict(found), ensure_ascii=False, default=_plain))


def note(text: str) -> None:
    """Something to know about the work; not part of the result."""
    click.echo(text, err=True)


@contextmanager
def progress(label: str, total: float | None = None) -> Iterator[ProgressTask]:
    """A progress bar on standard error for work that takes long; silent in a pipe."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        yield ProgressTask(bar, label, total)


class ProgressTask:
    """One bar; ``advance`` moves it."""

    def __init__(self, bar: Progress, label: str, total: float | None) -> None:
        self._bar = bar
        self._task = bar.add_task(label, total=total)

    def advance(self, steps: float = 1) -> None:
        """Count work done."""
        self._bar.advance(self._task, steps)


def _cell(item: object, name: str) -> str:
    if isinstance(item, int) and name.endswith("_ms") and item > _A_TIME_MS:
        item = datetime.fromtimestamp(item / 1000).astimezone().isoformat(" ", "seconds")
    match item:
        case None:
            return "-"
        case bool():
            return "yes" if item else "no"
        case str():
            return item
        case bytes():
            return f"<{len(item)} bytes>"
        case int() | float():
            return f"{item:,}"
    return json.dumps(item, ensure_ascii=False, default=_plain)


def _plain(item: Any) -> Any:
    """Values JSON does not know: bytes as ``{"base64": …}``, data classes as objects."""
    if isinstance(item, bytes | bytearray | memoryview):
        return {"base64": base64.b64encode(item).decode()}
    if is_dataclass(item) and not isinstance(item, type):
        return asdict(item)
    if isinstance(item, set | frozenset):
        return sorted(item)
    return str(item)
