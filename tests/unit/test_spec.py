"""Every number of the specification that is cited in sources, tests and docs exists there."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
CITED = re.compile(r"SPEC ([A-Z]\d*(?:(?:, | and |–|/)[A-Z]\d+)*)")
PLACES = ("src", "tests", "docs", "benchmarks", "tools", "examples")


def defined() -> set[str]:
    text = (ROOT / "docs" / "spec.md").read_text(encoding="utf-8")
    numbers = re.findall(r"^- ([A-Z]\d+) ", text, re.MULTILINE)
    assert len(numbers) == len(set(numbers)), "a number stands twice"
    return {*numbers, *re.findall(r"^## ([A-Z])\. ", text, re.MULTILINE)}


def cited() -> dict[str, str]:
    """Each number with a file that cites it."""
    found: dict[str, str] = {}
    for place in PLACES:
        for file in [*(ROOT / place).rglob("*.py"), *(ROOT / place).rglob("*.md")]:
            for match in CITED.findall(file.read_text(encoding="utf-8")):
                for number in re.findall(r"[A-Z]\d*", match):
                    found.setdefault(number, str(file.relative_to(ROOT)))
    return found


def test_every_reference_resolves() -> None:
    known = defined()
    dangling = {number: file for number, file in cited().items() if number not in known}
    assert not dangling
