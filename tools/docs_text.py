"""Docstrings as Markdown: double backticks, and tables drawn with ``====``."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeAlias

Rows: TypeAlias = list[list[str]]
"""A table: the head, then the rows."""


def prose(text: str) -> str:
    """A docstring's text as Markdown, on one line."""
    return re.sub(r"``(.+?)``", r"`\1`", " ".join(text.split()))


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(_cell(cell) for cell in line)} |\n" for line in lines)


def between(page: str, start: str, name: str, text: str) -> str:
    """The page with ``text`` between ``start`` and the end marker of that name."""
    end = f"<!-- /{name} -->"
    before, marker, rest = page.partition(start)
    return f"{before}{start}\n{text}{end}{rest.partition(end)[2]}" if marker else page


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def blocks(docstring: str) -> Iterator[str | Rows]:
    """The paragraphs and tables of a docstring, in order."""
    for block in docstring.split("\n\n"):
        yield _rows(block.splitlines()) if block.startswith("====") else prose(block)


def _rows(lines: list[str]) -> Rows:
    """Columns are where the rule has signs; a line with an empty first cell continues a row."""
    spans = [found.span() for found in re.finditer("=+", lines[0])]
    rows: Rows = []
    for line in (line for line in lines if not line.startswith("====")):
        cells = _cut(line, [start for start, _ in spans])
        if cells[0] or not rows:
            rows.append(cells)
        else:
            rows[-1] = [
                f"{above} {below}".strip() for above, below in zip(rows[-1], cells, strict=True)
            ]
    return [[prose(cell) for cell in row] for row in rows]


def _cut(line: str, starts: list[int]) -> list[str]:
    return [line[start:end].strip() for start, end in zip(starts, [*starts[1:], None], strict=True)]


def member_notes(node: ast.ClassDef) -> dict[str, str]:
    """The strings that stand below the members of a class, by member."""
    found: dict[str, str] = {}
    for member, below in zip(node.body, node.body[1:], strict=False):
        match member, below:
            case (
                (ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name))),
                ast.Expr(value=ast.Constant(value=str(text))),
            ):
                found[name] = prose(text)
    return found
