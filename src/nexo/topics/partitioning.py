"""Which partition a key belongs to."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from nexo.errors import InvalidOption
from nexo.protocol.murmur import partition_of

Partitioner: TypeAlias = Callable[[bytes, int], int]
"""``partitioner(key, partition_count)``."""


def partitioner_named(given: str | Partitioner) -> Partitioner:
    """``'murmur2'``, which is Kafka's, or a function of one's own."""
    if callable(given):
        return given
    if given != "murmur2":
        raise InvalidOption(f"partitioner {given!r} is not known: use 'murmur2' or a function")
    return partition_of
