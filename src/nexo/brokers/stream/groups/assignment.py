"""Assigns the partitions of an ordered group to its members (SPEC G6).

Members are ordered by when they joined, topics by name. Every partition of a topic is
assigned to exactly one of the members subscribed to it; the result depends on the arguments
alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from itertools import cycle
from typing import TypeAlias

from nexo.model.stream import StreamPartition
from nexo.options.stream import Strategy

Subscriptions: TypeAlias = Mapping[str, Set[str]]
"""Topics by member, in order of joining."""


def assign(
    strategy: Strategy, subscriptions: Subscriptions, partitions: Mapping[str, int]
) -> dict[StreamPartition, str]:
    """The owner of every partition of every subscribed topic."""
    if strategy == "range":
        return _by_range(subscriptions, partitions)
    return _round_robin(subscriptions, partitions)


def _by_range(
    subscriptions: Subscriptions, partitions: Mapping[str, int]
) -> dict[StreamPartition, str]:
    """Per topic, a contiguous run each; the first members take the remainder."""
    owners: dict[StreamPartition, str] = {}
    for topic in sorted(partitions):
        members = _subscribers(subscriptions, topic)
        first = 0
        for number, member in enumerate(members):
            share, rest = divmod(partitions[topic], len(members))
            end = first + share + (number < rest)
            owners |= {(topic, partition): member for partition in range(first, end)}
            first = end
    return owners


def _round_robin(
    subscriptions: Subscriptions, partitions: Mapping[str, int]
) -> dict[StreamPartition, str]:
    """Deal all partitions of all topics in turn, skipping members not subscribed."""
    owners: dict[StreamPartition, str] = {}
    turns = cycle(subscriptions)
    for topic in sorted(partitions):
        if _subscribers(subscriptions, topic):
            for partition in range(partitions[topic]):
                owners[topic, partition] = next(m for m in turns if topic in subscriptions[m])
    return owners


def _subscribers(subscriptions: Subscriptions, topic: str) -> list[str]:
    return [member for member, topics in subscriptions.items() if topic in topics]
