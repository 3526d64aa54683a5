"""The shape of the source: every class has a name of its own, folders stay small, no cycles.

The generated sync clients are left out: a class and its generated twin are one thing.
"""

from __future__ import annotations

import ast
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

SRC = Path(__file__).parents[2] / "src"
CLASS = re.compile(r"^ *class (\w+)[(:]", re.MULTILINE)


def modules() -> Iterator[Path]:
    return (path for path in sorted(SRC.rglob("*.py")) if "_sync" not in path.parts)


def classes(module: Path) -> Iterator[str]:
    """The classes of one module; ``AsyncClient`` and ``Client`` are one name."""
    for name in CLASS.findall(module.read_text(encoding="utf-8")):
        yield name.removeprefix("Async")


def test_no_class_name_stands_for_two_things() -> None:
    homes = defaultdict(list)
    for module in modules():
        for name in classes(module):
            homes[name].append(str(module.relative_to(SRC)))
    assert {name: where for name, where in homes.items() if len(where) > 1} == {}


def test_no_folder_holds_more_than_twenty_modules() -> None:
    sizes = Counter(str(module.parent.relative_to(SRC)) for module in modules())
    assert {folder: size for folder, size in sizes.items() if size > 20} == {}


def test_no_module_needs_what_needs_it_not_even_for_types() -> None:
    """What a module imports when it is loaded or checked; not what a function imports later."""
    known = {dotted(module): module for module in modules()}
    needs = {name: set(imports(module, known)) - {name} for name, module in known.items()}
    for_types = [
        (name, needed)
        for name, module in known.items()
        for needed in imports(module, known, for_types=True)
    ]
    assert len(for_types) > 20
    assert [pair for pair in for_types if pair[0] in closure(pair[1], needs)] == []


def test_the_tour_names_only_modules_that_there_are() -> None:
    tour = (SRC.parent / "docs" / "design" / "tour.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`([\w/]+\.py)`", tour))
    there = [*SRC.rglob("*.py"), *(SRC.parent / "tests").rglob("*.py")]
    assert len(named) > 100
    assert sorted(n for n in named if not any(p.match(n) for p in there)) == []


def dotted(module: Path) -> str:
    parts = module.relative_to(SRC).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(module: Path, known: dict[str, Path], *, for_types: bool = False) -> Iterator[str]:
    """The modules of ours that one imports at its top; with ``for_types`` those for types alone."""
    for node in parsed(module):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            continue
        checking = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
        for each in ast.walk(node) if checking or not for_types else ():
            if isinstance(each, ast.ImportFrom):
                for name in each.names:
                    whole = f"{each.module}.{name.name}"
                    yield from {whole if whole in known else each.module or ""} & known.keys()


@cache
def parsed(module: Path) -> list[ast.stmt]:
    return ast.parse(module.read_text(encoding="utf-8")).body


def closure(start: str, needs: dict[str, set[str]]) -> set[str]:
    """Everything that ``start`` needs, directly or not."""
    found, todo = set[str](), [start]
    while todo:
        if (name := todo.pop()) not in found:
            found.add(name)
            todo += needs[name]
    return found
