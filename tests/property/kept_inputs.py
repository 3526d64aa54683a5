"""Inputs that earlier fuzzing found worth keeping, one file per target."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec

FOLDER = Path(__file__).parent / "corpus"
LARGEST = 1_024
"""Longer ones seldom show more and weigh the repository down."""
MOST = 300
"""The shortest ones."""


def load(target: str) -> list[bytes]:
    """The kept inputs of a target."""
    try:
        return msgspec.msgpack.decode(_path(target).read_bytes(), type=list[bytes])
    except FileNotFoundError:
        return []


def save(target: str, inputs: Iterable[bytes]) -> None:
    """Keep these."""
    kept = sorted({data for data in inputs if len(data) <= LARGEST}, key=lambda x: (len(x), x))
    FOLDER.mkdir(exist_ok=True)
    _path(target).write_bytes(msgspec.msgpack.encode(kept[:MOST]))


def _path(target: str) -> Path:
    return FOLDER / f"{target.replace(' ', '-')}.msgpack"
