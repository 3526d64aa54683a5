"""Nexo in Spark: the data source ``nexo``, the pipeline into the lake, and SQL over both."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark_nexo.failures import plain_errors
    from pyspark_nexo.sessions import session
    from pyspark_nexo.source import DefaultSource
    from pyspark_nexo.topics import lag
    from pyspark_nexo.views import register_views

__all__ = ["DefaultSource", "lag", "plain_errors", "register_views", "session"]

_HOMES = {
    "DefaultSource": "source", "plain_errors": "failures", "register_views": "views",
    "session": "sessions", "lag": "topics",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    """Load names on first use: Spark is slow to import, and itself needs only the source."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
