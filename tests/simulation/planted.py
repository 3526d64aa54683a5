"""Puts known mistakes into a copy of the source, and looks whether they are found.

``python -m tests.simulation.planted`` applies each of ``planted/*.patch`` to a copy of the source
in a temporary folder. It then runs seeds of the named scenario until the named check sees it, or
the named test, for what needs no simulator. A finding counts only if the same seed without it
has none. The table of what was found is a page of the docs.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDER = Path(__file__).parent / "planted"
PAGE = ROOT / "docs" / "design" / "simulation-bugs.md"
MOST_SEEDS = 200
_PARTS = ("src", "tests", "tools", "pyproject.toml")


@dataclass(frozen=True)
class Planted:
    """One patch, and what is to see it."""

    path: Path
    scenario: str
    check: str
    was: str = ""
    """The finding whose mend it takes back."""
    test: str = ""

    @property
    def name(self) -> str:
        return self.path.stem

    def apply(self, root: Path, *options: str) -> None:
        """Apply it to a copy of the source; raises `CalledProcessError` if it does not fit."""
        command = ["git", "apply", *options, str(self.path)]
        subprocess.run(command, cwd=root, check=True, capture_output=True, text=True)


@dataclass(frozen=True)
class Found:
    """After how many seeds, or 0 if it was not found, and what it took."""

    seeds: int
    seconds: float


def read(path: Path) -> Planted:
    """A patch and its head, lines such as ``# check: offset twice``."""
    head = {}
    for line in path.read_text().splitlines():
        if not line.startswith("# "):
            break
        key, _, value = line[2:].partition(":")
        head[key] = value.strip()
    return Planted(path, **head)


def planted(part: str = "") -> list[Planted]:
    """Those whose name contains ``part``."""
    return [read(path) for path in sorted(FOLDER.glob("*.patch")) if part in path.stem]


def rotten() -> list[str]:
    """Why some do not apply to the source any more."""
    problems = []
    for one in planted():
        try:
            one.apply(ROOT, "--check")
        except subprocess.CalledProcessError as error:
            problems.append(f"{one.path.name}: {error.stderr.strip()}")
    return problems


@contextmanager
def _copy(one: Planted) -> Iterator[Path]:
    """A folder with the source and this mistake in it."""
    with tempfile.TemporaryDirectory(prefix="nexo-planted-") as name:
        root = Path(name)
        for part in _PARTS:
            if (ROOT / part).is_dir():
                skipped = shutil.ignore_patterns("__pycache__")
                shutil.copytree(ROOT / part, root / part, ignore=skipped)
            else:
                shutil.copy(ROOT / part, root / part)
        one.apply(root)
        yield root


def _run(root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(root / "src")}
    command = [sys.executable, "-m", *arguments]
    return subprocess.run(
        command, cwd=root, env=environment, capture_output=True, text=True, check=False
    )


def find(one: Planted, seeds: int, workers: int) -> Found:
    """Look for a mistake with the seeds from 1 on."""
    began_s = _cpu_s()
    with _copy(one) as root:
        if one.test:
            ended = _run(root, "pytest", "-q", "-x", "-p", "no:cacheprovider", one.test)
            found = int(ended.returncode == 1)
        else:
            found = _seed_that_finds(one, root, seeds, workers)
    return Found(found, _cpu_s() - began_s)


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _seed_that_finds(one: Planted, root: Path, seeds: int, workers: int) -> int:
    seed = 0
    while seed < seeds:
        rest = ("--first", str(seed + 1), "--seeds", str(seeds - seed), "--workers", str(workers))
        with_it = _first_seed(one, root, *rest)
        if not with_it:
            return 0
        seed = with_it
        if not _first_seed(one, ROOT, "--first", str(seed), "--seeds", "1"):
            return seed
    return 0


def _first_seed(one: Planted, root: Path, *arguments: str) -> int:
    """The first seed that finds it; 0 if none does."""
    base = ("tests.simulation", "--scenario", one.scenario, "--stop", one.check, "--no-shrink")
    ended = _run(root, *base, *arguments)
    last = ended.stdout.strip().rpartition("\n")[2]
    try:
        found: int = json.loads(last)["seed"]
    except (json.JSONDecodeError, KeyError):
        raise SystemExit(f"{one.name}: the run ended with\n{ended.stdout}{ended.stderr}") from None
    return found


def _row(one: Planted, found: Found) -> str:
    if one.test:
        by, seen = f"`{one.test.partition('::')[0]}`", "its test" if found.seeds else "**no**"
        seeds = ""
    else:
        by, seen = f"scenario {one.scenario}", one.check if found.seeds else "**no**"
        seeds = str(found.seeds or MOST_SEEDS)
    return f"| {one.name} | {one.was} | {by} | {seen} | {seeds} | {found.seconds:.0f} |"


def _write(rows: dict[str, str]) -> None:
    """Put rows into the page; others stay, unless their mistake is gone."""
    known = {one.name for one in planted()}
    if PAGE.exists():
        for line in PAGE.read_text().splitlines():
            name = line.removeprefix("| ").partition(" |")[0]
            if name in known and name not in rows:
                rows[name] = line
    head = (FOLDER / "page.md").read_text()
    PAGE.write_text(head + "".join(f"{rows[name]}\n" for name in sorted(rows)))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.planted", description=__doc__)
    parser.add_argument("part", nargs="?", default="", help="only those with this in their name")
    parser.add_argument("--check", action="store_true", help="only see whether all apply")
    parser.add_argument("--seeds", type=int, default=MOST_SEEDS)
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    given = parser.parse_args()
    if problems := rotten():
        print("these planted mistakes do not apply any more:", *problems, sep="\n")
        return 1
    if given.check:
        return 0
    missed = 0
    for one in planted("" if given.part == "all" else given.part):
        found = find(one, given.seeds, given.workers)
        missed += not found.seeds
        row = _row(one, found)
        print(row, flush=True)
        _write({one.name: row})
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
