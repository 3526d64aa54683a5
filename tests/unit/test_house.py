"""The shape of the source: every class has a name of its own, and folders stay small.

The generated sync clients are left out: a class and its generated twin are one thing.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator
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
