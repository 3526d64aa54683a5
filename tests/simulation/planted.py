"""Puts known mistakes into a copy of the source, and looks whether they are found.

``python -m tests.simulation.planted`` applies each of ``planted/*.patch`` to a copy of the source
in a temporary folder. It then runs seeds of the named scenario until the named check sees it, or
the named test, for what needs no simulator. A finding counts only if the same seed or test without
it has none. The table of what was found is a page of the docs; it is written after each of them, so
that ``rest`` goes on where a run was stopped.
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
MOST_CPU_S = 900
_NOT_SEEN = "**no**"
_ORDER = ("one", "lake", "two", "unit")
_PARTS = ("src", "tests", "tools", "compat", "pyproject.toml")


@dataclass(frozen=True)
class Planted:
    """One patch, and what is to see it."""

    path: Path
    scenario: str
    check: str
    was: str = ""
    """The finding whose mend it takes back."""
    test: str = ""
    areas: str = ""
    """What a run has to be about to reach it; the other seeds are counted, and not run."""

    @property
    def name(self) -> str:
        return self.path.stem

    def apply(self, root: Path, *options: str) -> None:
        """Apply it to a copy of the source; raises `CalledProcessError` if it does not fit."""
        command = ["git", "apply", *options, str(self.path)]
        subprocess.run(command, cwd=root, check=True, capture_output=True, text=True)


@dataclass(frozen=True)
class Limits:
    """How much is done for one mistake."""

    seeds: int = MOST_SEEDS
    cpu_s: float = MOST_CPU_S
    """Of one core; then its last seed ends."""
    workers: int = 1


@dataclass(frozen=True)
class Found:
    """Whether it was found, after how many seeds, and what it took."""

    ok: bool
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


class Copy:
    """A folder with the source as it was when it was made."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for part in _PARTS:
            if (ROOT / part).is_dir():
                shutil.copytree(ROOT / part, root / part)
            else:
                shutil.copy2(ROOT / part, root / part)

    @contextmanager
    def having(self, one: Planted) -> Iterator[None]:
        """With this mistake in it."""
        one.apply(self.root)
        try:
            yield
        finally:
            one.apply(self.root, "--reverse")

    def passes(self, test: str) -> bool:
        """Whether a test does."""
        return self._run("pytest", "-q", "-x", "-p", "no:cacheprovider", test).returncode == 0

    def first_seed(self, one: Planted, limits: Limits, first: int = 1) -> tuple[int, int]:
        """The first seed that finds something, or 0, and the last one that was tried."""
        ended = self._run(
            "tests.simulation", "--scenario", one.scenario, "--stop", one.check, "--no-shrink",
            "--areas", one.areas,
            "--first", str(first), "--seeds", str(limits.seeds - first + 1),
            "--cpu-s", str(limits.cpu_s), "--workers", str(limits.workers),
        )  # fmt: skip
        last = ended.stdout.strip().rpartition("\n")[2]
        try:
            said = json.loads(last)
            return said["seed"], said["last"]
        except (json.JSONDecodeError, KeyError):
            said = f"{ended.stdout}{ended.stderr}"
            raise SystemExit(f"{one.name}: the run ended with\n{said}") from None

    def _run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "PYTHONPATH": str(self.root / "src")}
        command = [sys.executable, "-m", *arguments]
        return subprocess.run(
            command, cwd=self.root, env=environment, capture_output=True, text=True, check=False
        )


@contextmanager
def copied() -> Iterator[Copy]:
    """A copy in a temporary folder."""
    with tempfile.TemporaryDirectory(prefix="nexo-planted-") as name:
        yield Copy(Path(name))


def find(one: Planted, limits: Limits, copy: Copy) -> Found:
    """Look for a mistake with the seeds from 1 on, or with its test."""
    began_s = _cpu_s()
    if one.test:
        with copy.having(one):
            is_found = not copy.passes(one.test)
        found, tried = int(is_found and copy.passes(one.test)), 1
    else:
        found, tried = _seed_that_finds(one, limits, copy)
    return Found(bool(found), tried, _cpu_s() - began_s)


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _seed_that_finds(one: Planted, limits: Limits, copy: Copy) -> tuple[int, int]:
    seed = 0
    while seed < limits.seeds:
        with copy.having(one):
            seed, last = copy.first_seed(one, limits, seed + 1)
        if not seed:
            return 0, last
        alone = Limits(seed, limits.cpu_s, 1)
        if not copy.first_seed(one, alone, seed)[0]:
            return seed, seed
    return 0, limits.seeds


def _row(one: Planted, found: Found) -> str:
    if one.test:
        by, seen, seeds = f"`{one.test.partition('::')[0]}`", "its test", ""
    else:
        by, seen, seeds = f"scenario {one.scenario}", one.check, str(found.seeds)
    seen = seen if found.ok else _NOT_SEEN
    return f"| {one.name} | {one.was} | {by} | {seen} | {seeds} | {found.seconds:.0f} |"


def _rows() -> dict[str, str]:
    """What the page has of mistakes that are still planted."""
    known = {one.name for one in planted()}
    lines = PAGE.read_text().splitlines() if PAGE.exists() else []
    rows = {line.removeprefix("| ").partition(" |")[0]: line for line in lines}
    return {name: row for name, row in rows.items() if name in known}


def _write(name: str, row: str) -> None:
    """Put a row into the page."""
    rows = _rows() | {name: row}
    head = (FOLDER / "page.md").read_text()
    PAGE.write_text(head + "".join(f"{rows[name]}\n" for name in sorted(rows)))


def chosen(part: str) -> list[Planted]:
    """Those with this in their name, all, or the rest: who has not been found yet.

    The scenarios come from the quickest on, then tests.
    """
    found = planted("" if part in {"all", "rest"} else part)
    if part == "rest":
        rows = _rows()
        found = [one for one in found if _NOT_SEEN in rows.get(one.name, _NOT_SEEN)]
    return sorted(found, key=lambda one: (bool(one.test), _ORDER.index(one.scenario)))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.planted", description=__doc__)
    parser.add_argument("part", nargs="?", default="", help="of their names; or all, or rest")
    parser.add_argument("--check", action="store_true", help="only see whether all apply")
    parser.add_argument("--seeds", type=int, default=MOST_SEEDS)
    parser.add_argument("--cpu-s", type=float, default=MOST_CPU_S, help="for one mistake")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    given = parser.parse_args()
    if problems := rotten():
        print("these planted mistakes do not apply any more:", *problems, sep="\n")
        return 1
    if given.check:
        return 0
    limits = Limits(given.seeds, given.cpu_s, given.workers)
    missed = 0
    with copied() as copy:
        for one in chosen(given.part):
            found = find(one, limits, copy)
            missed += not found.ok
            row = _row(one, found)
            print(row, flush=True)
            _write(one.name, row)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
