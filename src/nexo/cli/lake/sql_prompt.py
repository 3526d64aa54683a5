"""Queries typed one by one: with history, completion, and lines until a semicolon."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import click

_WORDS = (
    "select", "from", "where", "group by", "order by", "limit", "join", "on", "as", "and", "or",
    "not", "null", "is", "in", "like", "between", "count(*)", "sum(", "avg(", "min(", "max(",
    "cast(", "distinct", "having", "union all", "with", "case", "when", "then", "else", "end",
    "partition", "offset", "timestamp", "key", "value", "headers", "topic", "desc",
)  # fmt: skip
_MOST = 1_000
HELP = "End a query with ';'. \\d lists the views, \\q ends."


def prompt(names: Callable[[], list[str]]) -> Iterator[str]:
    """Queries from standard input: all of it at once unless it is a terminal."""
    if not sys.stdin.isatty():
        if text := sys.stdin.read().strip().rstrip(";"):
            yield text
        return
    click.echo(HELP, err=True)
    with _history():
        _complete(names)
        yield from _typed(names)


def _typed(names: Callable[[], list[str]]) -> Iterator[str]:
    lines: list[str] = []
    while True:
        try:
            line = input("nexo> " if not lines else "  ... ").strip()
        except EOFError:
            click.echo(err=True)
            return
        except KeyboardInterrupt:
            click.echo(err=True)
            lines.clear()
            continue
        if not lines and line in ("\\q", "exit", "quit"):
            return
        if not lines and line == "\\d":
            click.echo("\n".join(names()))
            continue
        lines.append(line)
        if line.endswith(";"):
            text = "\n".join(lines).strip().rstrip(";")
            lines.clear()
            if text:
                yield text


@contextmanager
def _history() -> Iterator[None]:
    """Keeps what was typed for the next time."""
    state = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    path = Path(state) / "nexo" / "sql_history"
    with suppress(ImportError, OSError):
        import readline  # noqa: PLC0415 - not everywhere

        readline.set_history_length(_MOST)
        readline.read_history_file(path)
    try:
        yield
    finally:
        with suppress(ImportError, OSError):
            import readline  # noqa: PLC0415

            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            readline.write_history_file(path)


def _complete(names: Callable[[], list[str]]) -> None:
    with suppress(ImportError):
        import readline  # noqa: PLC0415

        known = sorted({*_WORDS, *names()})
        readline.set_completer(lambda text, number: completion(known, text, number))
        readline.set_completer_delims(" \t\n,()=<>;")
        readline.parse_and_bind("tab: complete")


def completion(known: Sequence[str], text: str, number: int) -> str | None:
    """The ``number``-th word that begins with ``text``; None after the last."""
    found = [word for word in known if word.startswith(text.lower())]
    return found[number] if number < len(found) else None
