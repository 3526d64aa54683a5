"""SQL over streams in about a second: the hot log and the lake in one view, with DuckDB (I10)."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nexo.sql.engine import Engine
    from nexo.sql.result import Result

__all__ = ["Engine", "Result"]

_HOMES = {"Engine": "engine", "Result": "result"}


def __getattr__(name: str) -> Any:
    """Names loaded on first use: DuckDB and Arrow are optional, and slow to import."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
