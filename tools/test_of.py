"""Runs the tests that cover a source file: `make test-of F=src/nexo/storage/log.py`.

These are the tests named after it, those that find planted mistakes in it, and the nearest by
imports: those that import the module, else those that import a module that imports it, and so on.
"""

from __future__ import annotations

import argparse
import ast
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent
PLANTED = ROOT / "tests/simulation/planted"


def own(source: Path) -> list[Path]:
    """The tests that are named after the file, its unit test among them."""
    named = re.compile(rf"test_{source.stem}(_\w+)?\.py")
    return [file for file in python_files("tests") if named.fullmatch(file.name)]


def planted(source: Path) -> Iterator[Path]:
    """The tests that find a mistake planted in the file."""
    for patch in sorted(PLANTED.glob("*.patch")):
        text = patch.read_text()
        if f"+++ b/{source}\n" in text:
            yield from (
                Path(test.split("::")[0])
                for test in re.findall(r"^# test: (\S+)", text, re.MULTILINE)
            )


def module_name(file: Path) -> str:
    """`nexo.storage.log` of `src/nexo/storage/log.py`, the package of an `__init__.py`."""
    parts = file.relative_to("src").with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def imported(file: Path) -> set[str]:
    """The names that a file imports, each with the module it is from."""
    names: set[str] = set()
    for node in ast.walk(ast.parse((ROOT / file).read_text())):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return names


@cache
def python_files(*folders: str) -> list[Path]:
    """The files of these folders that git knows."""
    listed = subprocess.run(
        ["git", "ls-files", *folders], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return [Path(line) for line in listed.stdout.splitlines() if line.endswith(".py")]


def nearest(source: Path) -> list[Path]:
    """The tests that are the fewest imports away."""
    tests = {
        file: imported(file) for file in python_files("tests") if file.name.startswith("test_")
    }
    modules = {module_name(file): imported(file) for file in python_files("src") if file != source}
    wanted = {module_name(source)}
    seen: set[str] = set()
    while wanted:
        found = [file for file, names in tests.items() if names & wanted]
        if found:
            return found
        seen |= wanted
        wanted = {name for name, names in modules.items() if names & wanted} - seen
    return []


def tests_of(source: Path) -> list[Path]:
    return list(dict.fromkeys([*own(source), *planted(source), *nearest(source)]))


def inside(file: str) -> Path:
    """The file from the project's root; raises `SystemExit` if it is no source of ours."""
    path = (ROOT / file).resolve()
    if not path.is_file() or not path.is_relative_to(ROOT / "src") or path.suffix != ".py":
        raise SystemExit(f"{file}: name a Python file under src, such as F=src/nexo/storage/log.py")
    return path.relative_to(ROOT)


def main(arguments: Iterable[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", help="a file under src")
    parser.add_argument("--list", action="store_true", help="only name the tests")
    options = parser.parse_args(None if arguments is None else list(arguments))
    tests = tests_of(inside(options.file))
    print(*tests, sep="\n", flush=True)
    if options.list:
        return 0
    if not tests:
        raise SystemExit(f"no test imports {options.file}, not even through another module")
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *map(str, tests)], cwd=ROOT, check=False
    ).returncode


if __name__ == "__main__":
    sys.exit(main())
