"""What is expected of each suite, in ``compat/expected.json``, and its page."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any, TypedDict

from compat.suite import ROOT, Ending, Results, Suite

FILE = Path(__file__).with_name("expected.json")
PAGE = ROOT / "docs" / "reference" / "kafka-compatibility.md"
HEADING = "## Other projects' suites"
UNEXPLAINED = "not explained yet"
_INTRODUCTION = """
`make compat` runs the tests of other projects against `nexo serve`, and fails if one fails that
passed before. What passes, and why the rest does not, is kept in `compat/expected.json`. A test
that its project skips here is not listed.
"""


class Expected(TypedDict):
    """What is known of one suite."""

    version: str
    passed: list[str]
    failed: dict[str, str]
    """Why each fails."""


def read() -> dict[str, Expected]:
    """By the suites' names."""
    found: dict[str, Any] = json.loads(FILE.read_text()) if FILE.exists() else {}
    return found


def broken(expected: Expected | None, results: Results) -> dict[str, str]:
    """The tests that passed before and fail now, with what they say."""
    passed = set(expected["passed"]) if expected is not None else set[str]()
    return {
        name: result.message
        for name, result in sorted(results.items())
        if result.ending is Ending.FAILED and name in passed
    }


def mended(expected: Expected | None, results: Results) -> list[str]:
    """The tests that pass now and are not known to."""
    passed = set(expected["passed"]) if expected is not None else set[str]()
    return sorted(
        name
        for name, result in results.items()
        if result.ending is Ending.PASSED and name not in passed
    )


def updated(suite: Suite, known: Expected | None, results: Results) -> Expected:
    """What is expected from now on; reasons that are known are kept."""
    reasons = known["failed"] if known is not None else {}
    failed = {
        name: reasons.get(name) or result.message or UNEXPLAINED
        for name, result in sorted(results.items())
        if result.ending is Ending.FAILED
    }
    passed = sorted(name for name, one in results.items() if one.ending is Ending.PASSED)
    return {"version": suite.version, "passed": passed, "failed": failed}


def write(expected: dict[str, Expected]) -> None:
    """Keep it, and write the page's section anew."""
    FILE.write_text(json.dumps(expected, indent=1, ensure_ascii=False) + "\n")
    PAGE.write_text(page(PAGE.read_text(), expected))


def page(text: str, expected: dict[str, Expected]) -> str:
    """A page with the section as it should be at its end."""
    head = text.partition(HEADING)[0].rstrip()
    return f"{head}\n\n{section(expected)}"


def section(expected: dict[str, Expected]) -> str:
    """The section about these suites."""
    parts = [f"{HEADING}\n{_INTRODUCTION}"]
    parts += [_shown(name, one) for name, one in sorted(expected.items())]
    return "\n".join(parts)


def _shown(name: str, one: Expected) -> str:
    lines = [f"### {name} {one['version']}", ""]
    lines.append(f"{len(one['passed'])} pass, {len(one['failed'])} fail.")
    if one["failed"]:
        lines += ["", "| fails | because |", "| --- | --- |"]
        lines += [f"| {_code(test)} | {_cell(why)} |" for test, why in one["failed"].items()]
    lines += ["", *(f"- {row}" for row in _grouped(one["passed"])), ""]
    return "\n".join(lines)


def _grouped(names: list[str]) -> list[str]:
    """The tests of each class or file, without the parameters of each."""
    groups: dict[str, dict[str, int]] = defaultdict(dict)
    for name in names:
        place, _, test = name.rpartition("::")
        short = test.partition("[")[0] if place else test.partition("/")[0]
        groups[place][short] = groups[place].get(short, 0) + 1
    return [
        (f"{_code(place)}: " if place else "") + ", ".join(map(_counted, tests.items()))
        for place, tests in groups.items()
    ]


def _counted(test: tuple[str, int]) -> str:
    name, count = test
    return _code(name) if count == 1 else f"{_code(name)} ({count})"


def _code(text: str) -> str:
    return f"`{text}`"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")
