"""The page of limits, from the names in `nexo.limits` and the texts below them."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from itertools import pairwise

from nexo import limits
from tools.docs_text import table


def page() -> str:
    """The page of all limits."""
    return f"""# Limits

What one client may take of a server, and how long it may take for it. [Settings](configuration.md)
change some limits (`max_payload_bytes`, `max_connections`, `max_in_flight`, `write_buffer_bytes`);
those below are fixed, and named in `nexo/limits.py`.

{table(("limit", "value", "meaning"), list(_rows()))}"""


def _rows() -> Iterator[tuple[str, str, str]]:
    body = ast.parse(inspect.getsource(limits)).body
    for statement, text in pairwise(body):
        if isinstance(statement, ast.Assign) and isinstance(text, ast.Expr):
            (target,) = statement.targets
            if isinstance(target, ast.Name) and isinstance(text.value, ast.Constant):
                value = getattr(limits, target.id)
                yield f"`{target.id}`", _shown(target.id, value), _one_line(str(text.value.value))


def _shown(name: str, value: float) -> str:
    if "BYTES" in name and value >= limits.KIB:
        mib, kib = divmod(value, limits.MIB)[0], value / limits.KIB
        return f"{value / limits.MIB:g} MiB" if mib else f"{kib:g} KiB"
    if name.endswith("_MS"):
        return f"{value / 1000:,g} s"
    return f"{value:g} s" if name.endswith("_S") else f"{value:,}"


def _one_line(text: str) -> str:
    return " ".join(text.split()).replace("``", "`")
