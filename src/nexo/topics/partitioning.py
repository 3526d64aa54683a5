"""Which partition a message belongs to: the one given, its key's, or the next in turn."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from nexo.batch.murmur import partition_of
from nexo.errors import InvalidInput, InvalidOption

Partitioner: TypeAlias = Callable[[bytes, int], int]
"""``partitioner(key, partition_count)``."""


def partitioner_named(given: str | Partitioner) -> Partitioner:
    """``'murmur2'``, which is Kafka's, or a function."""
    if callable(given):
        return given
    if given != "murmur2":
        raise InvalidOption(f"partitioner {given!r} is not known: use 'murmur2' or a function")
    return partition_of


class Chooser:
    """Chooses the partition of each message of a producer."""

    def __init__(self, partitioner: Partitioner) -> None:
        self._partitioner = partitioner
        self._turns: dict[str, int] = {}

    def partition_of(self, topic: str, given: int | None, key: bytes | None, count: int) -> int:
        """One of the ``count`` that the topic has; errors are also those of the partitioner."""
        if given is not None:
            return _existing(topic, given, count)
        if key is not None:
            return _existing(topic, self._partitioner(key, count), count)
        turn = self._turns.get(topic, -1) + 1
        self._turns[topic] = turn
        return turn % count


def _existing(topic: str, partition: object, count: int) -> int:
    """A partition that the topic has."""
    if isinstance(partition, bool) or not isinstance(partition, int):
        raise InvalidInput(f"partition {partition!r} of {topic!r} is not a whole number")
    if not 0 <= partition < count:
        raise InvalidInput(f"partition {partition} does not exist: {topic!r} has {count}, from 0")
    return partition
