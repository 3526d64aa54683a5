"""The shape of the source: every type has a name of its own, folders stay small, no cycles.

The generated sync clients are left out: a class and its generated twin are one thing.
"""

from __future__ import annotations

import ast
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

SRC = Path(__file__).parents[2] / "src"
ALIAS = re.compile(r"[A-Z]+[a-z]\w*")
CLASS = re.compile(r"^ *class (\w+)[(:]", re.MULTILINE)


def modules() -> Iterator[Path]:
    return (path for path in sorted(SRC.rglob("*.py")) if "_sync" not in path.parts)


def test_no_name_of_a_type_stands_for_two_things() -> None:
    homes = defaultdict(list)
    for module in modules():
        for name in {*classes(module), *aliases(module)}:
            homes[name].append(str(module.relative_to(SRC)))
    assert {name: where for name, where in homes.items() if len(where) > 1} == {}


def classes(module: Path) -> Iterator[str]:
    """The classes of one module; ``AsyncClient`` and ``Client`` are one name."""
    for name in CLASS.findall(module.read_text(encoding="utf-8")):
        yield name.removeprefix("Async")


def aliases(module: Path) -> Iterator[str]:
    """The public names that one module gives to types: ``X: TypeAlias = …``, ``X = Annotated[…]``
    and ``X = A | B``."""
    for node in ast.parse(module.read_text(encoding="utf-8")).body:
        match node:
            case ast.AnnAssign(target=ast.Name(id=name), annotation=ast.Name(id="TypeAlias")):
                pass
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Subscript() | ast.BinOp()):
                pass
            case _:
                continue
        if ALIAS.fullmatch(name):
            yield name


def test_no_folder_holds_more_than_twenty_modules() -> None:
    sizes = Counter(str(module.parent.relative_to(SRC)) for module in modules())
    assert {folder: size for folder, size in sizes.items() if size > 20} == {}


def test_no_module_needs_what_needs_it() -> None:
    """Neither when it is loaded, nor for types, nor when a function runs: such a late import hides
    a cycle."""
    known = {dotted(module): module for module in modules()}
    needs = {name: set(imports(module, known)) - {name} for name, module in known.items()}
    assert sum(map(len, needs.values())) > 2000
    assert sorted(name for name in known if name in closure(needs[name], needs)) == []


def test_the_tour_names_only_modules_that_there_are() -> None:
    tour = (SRC.parent / "docs" / "design" / "tour.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`([\w/]+\.py)`", tour))
    there = [*SRC.rglob("*.py"), *(SRC.parent / "tests").rglob("*.py")]
    assert len(named) > 100
    assert sorted(n for n in named if not any(p.match(n) for p in there)) == []


def dotted(module: Path) -> str:
    parts = module.relative_to(SRC).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(module: Path, known: dict[str, Path]) -> Iterator[str]:
    """The modules of ours that one imports, wherever in it."""
    for node in ast.walk(ast.parse(module.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from {name.name for name in node.names} & known.keys()
        elif isinstance(node, ast.ImportFrom):
            for name in node.names:
                whole = f"{node.module}.{name.name}"
                yield from {whole if whole in known else node.module or ""} & known.keys()


def closure(starts: Iterable[str], needs: dict[str, set[str]]) -> set[str]:
    """These modules and everything that they need, directly or not."""
    found, todo = set[str](), [*starts]
    while todo:
        if (name := todo.pop()) not in found:
            found.add(name)
            todo += needs[name]
    return found
