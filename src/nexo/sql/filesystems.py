"""Files of object stores, read by DuckDB through PyIceberg's own access to them.

DuckDB reads local files by itself. For others it is given the file system that PyIceberg made from
the catalog's settings, so that credentials are configured once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from nexo.lake.paths import local_path

if TYPE_CHECKING:
    import duckdb
    from pyiceberg.io import FileIO


def make_readable(
    connection: duckdb.DuckDBPyConnection, io: Callable[[], FileIO], path: str
) -> None:
    """Have ``connection`` read files that lie where ``path`` does."""
    if local_path(path) is not None:
        return
    parts = urlsplit(path)
    if not connection.filesystem_is_registered(parts.scheme):
        connection.register_filesystem(_wrapped(io(), parts.scheme, parts.netloc))


def _wrapped(io: Any, scheme: str, netloc: str) -> Any:
    from fsspec.implementations.arrow import ArrowFSWrapper  # noqa: PLC0415 - only if need be

    class Wrapped(ArrowFSWrapper):  # type: ignore[misc]
        protocol = scheme
        cachable = False

    return Wrapped(io.fs_by_scheme(scheme, netloc))
