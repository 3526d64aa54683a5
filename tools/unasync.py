"""Writes the sync client from the async one: ``python tools/unasync.py [--check]``.

Works on tokens, so layout, comments and strings survive; ruff settles the rest. Modules
that touch sockets or threads are written twice by hand and left alone.
"""

from __future__ import annotations

import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Collection
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).resolve().parent.parent
NEXO = ROOT / "src" / "nexo"
PACKAGES = (NEXO / "client", NEXO / "topics")
"""Each has ``_async``, and ``_sync`` generated from it."""
HAND_WRITTEN = {
    "kafka/backend.py",
    "kafka/ledger.py",
    "kafka/reader.py",
    "kafka/sender.py",
    "link/deadlines.py",
    "link/gathering.py",
    "link/link.py",
    "link/offline.py",
    "link/poll.py",
    "link/wire.py",
    "producer/delivery.py",
    "pubsub/publisher.py",
    "queue/gather.py",
    "runtime.py",
    "stream/publisher.py",
}
"""Relative to ``_async``; packages' own ``__init__.py`` are written by hand too."""
HEADER = "# Generated from {name} by tools/unasync.py; edit that file instead.\n"

RENAMED = {
    "__aenter__": "__enter__",
    "__aexit__": "__exit__",
    "__aiter__": "__iter__",
    "__anext__": "__next__",
    "_async": "_sync",
    "aclose": "close",
    "aiter": "iter",
    "anext": "next",
    "asynccontextmanager": "contextmanager",
    "StopAsyncIteration": "StopIteration",
}
TEXTS = {
    tokenize.STRING,
    tokenize.COMMENT,
    getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING),  # from Python 3.12 on
}
IN_TEXT = (
    (re.compile(r"\bawait (?=[\w(])"), ""),
    (re.compile(r"\basync (?=with|for|def)"), ""),
    (re.compile(r"\bAsync(?=[A-Z])"), ""),
    (re.compile(r"\b_async\b"), "_sync"),
    (re.compile(r"\bconnect_async\b"), "connect"),
)


def main() -> int:
    """Write the files, or with ``--check`` say which are stale."""
    wanted = generated()
    stale = [target for target, text in wanted.items() if current(target) != text]
    if "--check" in sys.argv[1:]:
        for target in stale:
            print(f"stale: {target.name}; run python tools/unasync.py", file=sys.stderr)
        for target in orphans(wanted):
            print(f"stale: {target.name} has no source any more", file=sys.stderr)
        return 1 if stale or orphans(wanted) else 0
    for target in stale:
        target.write_text(wanted[target], encoding="utf-8")
        print(f"wrote {target.name}")
    for target in orphans(wanted):
        target.unlink()
        print(f"removed {target.name}")
    return 0


def orphans(wanted: Collection[Path]) -> list[Path]:
    """Generated modules whose source is gone."""
    mark = HEADER.split("{", maxsplit=1)[0]
    return [
        path
        for package in PACKAGES
        for path in sorted((package / "_sync").rglob("*.py"))
        if path not in wanted and path.read_text(encoding="utf-8").startswith(mark)
    ]


def sources() -> list[Path]:
    """The modules that have a generated twin."""
    return [
        path
        for package in PACKAGES
        for path in sorted((package / "_async").rglob("*.py"))
        if path.name != "__init__.py" and within(path) not in HAND_WRITTEN
    ]


def within(source: Path) -> str:
    """Its path below ``_async``."""
    return str(source).rpartition("/_async/")[2]


def twin(source: Path) -> Path:
    """Where the sync version of a module is."""
    head, _, name = str(source).rpartition("/_async/")
    return Path(head, "_sync", name)


def current(target: Path) -> str | None:
    """What is checked in."""
    return target.read_text(encoding="utf-8") if target.exists() else None


def generated() -> dict[Path, str]:
    """Each sync twin and its text; ruff formats all of them together, in a folder aside."""
    with TemporaryDirectory() as folder:
        aside = {twin(source): Path(folder, *twin(source).parts[1:]) for source in sources()}
        for source in sources():
            head = HEADER.format(name=f"_async/{within(source)}")
            draft = aside[twin(source)]
            draft.parent.mkdir(parents=True, exist_ok=True)
            draft.write_text(head + to_sync(source.read_text(encoding="utf-8")), encoding="utf-8")
        ruff("check", "--select", "I,F401", "--fix", "--exit-zero", folder)
        ruff("format", folder)
        return {target: draft.read_text(encoding="utf-8") for target, draft in aside.items()}


def ruff(*arguments: str) -> None:
    """Run ruff with this project's configuration, whose paths are relative to the root."""
    line = [sys.executable, "-m", "ruff", *arguments, "--quiet", "--config", "pyproject.toml"]
    subprocess.run(line, cwd=ROOT, check=True)


def to_sync(text: str) -> str:
    """``text`` without its asynchrony."""
    lines = text.splitlines(keepends=True)
    tokens = list(tokenize.generate_tokens(io.StringIO(text).readline))
    for start, end, new in reversed(edits(tokens)):
        row, column = start
        last_row, last_column = end
        head, tail = lines[row - 1][:column], lines[last_row - 1][last_column:]
        lines[row - 1 : last_row] = [head + new + tail]
    return "".join(lines)


Edit = tuple[tuple[int, int], tuple[int, int], str]


def edits(tokens: list[tokenize.TokenInfo]) -> list[Edit]:
    """What to replace, in order of place."""
    found: list[Edit] = []
    for at, token in enumerate(tokens):
        if token.type == tokenize.NAME and token.string in ("async", "await"):
            found.append((token.start, tokens[at + 1].start, ""))
        elif token.type == tokenize.NAME and token.string == "Awaitable":
            found += unwrapped(tokens, at)
        elif (new := replaced(token)) != token.string:
            found.append((token.start, token.end, new))
    return sorted(found)


def unwrapped(tokens: list[tokenize.TokenInfo], at: int) -> list[Edit]:
    """``Awaitable[X]`` is ``X``; alone, as in an import, it stays for ruff to remove."""
    if tokens[at + 1].string != "[":
        return []
    depth = 0
    for closing in tokens[at + 1 :]:
        depth += (closing.string == "[") - (closing.string == "]")
        if depth == 0:
            return [
                (tokens[at].start, tokens[at + 1].end, ""),
                (closing.start, closing.end, ""),
            ]
    raise SyntaxError(f"line {tokens[at].start[0]}: bracket of Awaitable never closed")


def replaced(token: tokenize.TokenInfo) -> str:
    """What stands in its place."""
    if token.type == tokenize.NAME:
        return renamed(token.string)
    return in_text(token.string) if token.type in TEXTS else token.string


def renamed(name: str) -> str:
    """``AsyncX`` is ``X`` in the sync client."""
    return RENAMED.get(name) or re.sub(r"^Async(?=[A-Z])", "", name)


def in_text(text: str) -> str:
    """Docstrings and comments speak of the sync client."""
    for pattern, new in IN_TEXT:
        text = pattern.sub(new, text)
    return text


if __name__ == "__main__":
    sys.exit(main())
