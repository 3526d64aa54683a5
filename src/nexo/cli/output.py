"""The output of commands: tables and sentences for people, lines for programs.

Results go to standard output, everything about the work (progress, notes) to
standard error, so that a pipe sees results only. A table in a pipe has neither frame
nor head: a line per row, tabs between its fields.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from nexo.cli import cells
from nexo.cli.options import common

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress
    from rich.table import Table

# ruff: noqa: PLC0415 - rich is slow to import, and JSON output does not need it


def rows(
    found: Iterable[Mapping[str, object]],
    columns: Sequence[str],
    empty: str = "",
    *,
    literal: bool = False,
) -> None:
    """A table with these columns, or one JSON object (with all fields) per row.

    ``empty`` is printed on standard error instead of an empty table. ``literal`` columns were
    named by others: their names say nothing about units.
    """
    if common().as_json:
        for row in found:
            line(row)
        return
    show = _print_lines if _piped() else _print_table
    if not show(found, columns, literal) and empty:
        note(empty)


def _piped() -> bool:
    return not sys.stdout.isatty()


def _print_lines(
    found: Iterable[Mapping[str, object]], columns: Sequence[str], literal: bool
) -> int:
    count = 0
    for row in found:
        shown = (
            cells.text(row.get(column), "" if literal else column, bare=True) for column in columns
        )
        click.echo("\t".join(shown))
        count += 1
    return count


def _print_table(
    found: Iterable[Mapping[str, object]], columns: Sequence[str], literal: bool
) -> int:
    kept = list(found)
    if kept:
        console().print(table(kept, columns, literal=literal))
    return len(kept)


def console() -> Console:
    """Standard output for what rich draws."""
    from rich.console import Console

    made = Console(markup=False, highlight=False)
    if not made.is_terminal:
        made.width = 10_000  # a pipe has no width to wrap at
    return made


def table(
    kept: Sequence[Mapping[str, object]], columns: Sequence[str], *, literal: bool = False
) -> Table:
    """A table with these columns; numbers are set to the right."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    made = Table(box=SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        numeric = all(isinstance(row.get(column), int | float | None) for row in kept)
        label = column if literal else cells.label(column)
        made.add_column(label, justify="right" if numeric else "left")
    for row in kept:
        shown = (cells.text(row.get(column), "" if literal else column) for column in columns)
        made.add_row(*map(Text, shown))
    return made


def fields(found: Mapping[str, object]) -> None:
    """One thing: a line per field, or one JSON object (with all fields)."""
    if common().as_json:
        line(found)
        return
    shown = list(cells.flat(found))
    width = max((len(cells.label(name)) for name, _ in shown), default=0)
    for name, item in shown:
        head = f"{cells.label(name)}\t" if _piped() else f"{cells.label(name):<{width}}  "
        click.echo(head + cells.text(item, name, bare=_piped()))


def value(found: object) -> None:
    """A stored value as it is: text as text, bytes as bytes, anything else as JSON."""
    if common().as_json:
        line({"value": found})
    elif isinstance(found, bytes):
        sys.stdout.buffer.write(found)
    elif isinstance(found, str):
        text(found)
    else:
        text(json.dumps(found, indent=2, ensure_ascii=False, default=cells.plain))


def text(found: str) -> None:
    """Text as it is; on a terminal, control characters are escaped."""
    click.echo(found if _piped() else cells.visible(found, "\n\t"))


def done(sentence: str, **facts: object) -> None:
    """Report a change: a sentence, or its facts as one JSON object."""
    if common().as_json:
        line(facts)
    else:
        text(sentence)


def line(found: Mapping[str, object]) -> None:
    """One JSON object on a line of its own, written out at once."""
    click.echo(json.dumps(dict(found), ensure_ascii=False, default=cells.plain))


def note(text: str) -> None:
    """Something to know about the work; not part of the result."""
    click.echo(cells.visible(text, "\n\t"), err=True)


@contextmanager
def progress(label: str, total: float | None = None) -> Iterator[ProgressTask]:
    """A progress bar on standard error for work that takes long; silent in a pipe."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        yield ProgressTask(bar, label, total)


class ProgressTask:
    """One bar; ``advance`` moves it, ``show`` sets it."""

    def __init__(self, bar: Progress, label: str, total: float | None) -> None:
        self._bar = bar
        self._task = bar.add_task(label, total=total)

    def advance(self, steps: float = 1) -> None:
        """Count work done."""
        self._bar.advance(self._task, steps)

    def show(self, done: float, total: float) -> None:
        """Set how much is done, and how much there is to do as far as is known."""
        self._bar.update(self._task, completed=done, total=total)
