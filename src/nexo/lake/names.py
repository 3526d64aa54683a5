"""How data files are named: a file says by its name that Nexo wrote it, and in which order."""

from __future__ import annotations

import re

_NAMED = re.compile(r"\d{4,}-\d{16}(-\d{16})?(-[a-z]+)?-[0-9a-f]{12}\.parquet")
PLACELESS = "placeless"
"""How the name of a file begins that has rows without a place in the log."""


def file_label(partition: int, first: int, end: int, kind: str = "") -> str:
    """How the name of a file begins that holds a partition's offsets from ``first`` on, in order.

    ``end`` is one past the last. Only such files may be named so.
    """
    return f"{partition:04}-{first:016}-{end:016}" + (f"-{kind}" if kind else "")


def is_named(path: str) -> bool:
    """Whether a file is named as one partition's rows in order."""
    return _NAMED.fullmatch(file_name(path)) is not None


def file_name(path: str) -> str:
    return path.rpartition("/")[2]
