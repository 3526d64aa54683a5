"""Errors of catalogs, object stores and data files, as errors of ours."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager

from nexo.errors import ConfigError, Corrupt, NexoError, Unavailable

_DRIVERS = ("pyiceberg", "pydantic", "sqlalchemy", "sqlite3", "requests", "urllib3", "botocore")
"""Modules whose errors mean that a catalog or a store failed, not our own code."""
_READERS = ("pyiceberg", "fastavro")
_DAMAGE = (
    ValueError, LookupError, EOFError, OverflowError, MemoryError, SystemError, zlib.error,
    struct.error,
)  # fmt: skip
"""What those raise where a file is not what it should be."""


@contextmanager
def lake_errors(what: str, *, settings: bool = False) -> Iterator[None]:
    """Raise errors of catalogs, object stores and data files as a `NexoError`: ``what`` failed.

    ``settings``: the user's settings are used, so a bad value is a `ConfigError`. Errors of our own
    code pass unchanged.
    """
    try:
        yield
    except (NexoError, ImportError):
        raise
    except Exception as error:  # catalogs raise whatever their drivers raise
        kind = _kind(error, settings)
        if kind is None:
            raise
        raise kind(f"{what}: {first_line(error)}") from error


def _kind(error: Exception, settings: bool) -> type[NexoError] | None:
    """What an error means to the user; None if our own code is wrong."""
    if type(error).__name__ == "NotInstalledError":
        return ConfigError
    home = type(error).__module__
    if home.startswith("pyarrow") and isinstance(error, ValueError):
        return Corrupt
    if settings and isinstance(error, ValueError | TypeError | KeyError):
        return ConfigError
    if isinstance(error, _DAMAGE) and _raised_in(error).startswith(_READERS):
        return Corrupt
    if isinstance(error, OSError) or home.startswith(_DRIVERS):
        return Unavailable
    return None


def _raised_in(error: BaseException) -> str:
    """The module of ours or of others in which an error was raised."""
    found, trace = "", error.__traceback__
    while trace is not None:
        found = str(trace.tb_frame.f_globals.get("__name__", ""))
        trace = trace.tb_next
    return found


def first_line(error: BaseException) -> str:
    """An error's message without the pages that some drivers add."""
    return (str(error) or type(error).__name__).splitlines()[0]
