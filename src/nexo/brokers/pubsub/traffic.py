"""Message counts of the most recently used topics; their number is bounded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

MOST = 4_096
"""Topics remembered."""
LONGEST = 512
"""Longer topics are not counted: they could exhaust memory."""


class Traffic:
    """Counts every message, so it does little for each.

    New counts are collected separately and merged when read, or when there are as many as are
    remembered; the topics merged longest ago are then dropped.
    """

    __slots__ = ("_kept", "_most", "_new")

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._new: dict[bytes, int] = {}
        self._kept: dict[bytes, int] = {}

    def count(self, topics: list[bytes]) -> None:
        new, first, size = self._new, topics[0], len(topics)
        if size == 1 or topics.count(first) == size:
            if len(first) <= LONGEST:
                new[first] = new.get(first, 0) + size
        else:
            for topic, count in Counter(topics).items():
                if len(topic) <= LONGEST:
                    new[topic] = new.get(topic, 0) + count
        if len(new) > self._most:
            self._merge()

    def _merge(self) -> None:
        kept = self._kept
        for topic, count in self._new.items():
            kept[topic] = kept.pop(topic, 0) + count
        self._new.clear()
        for topic in list(kept)[: max(0, len(kept) - self._most)]:
            del kept[topic]

    def latest(self) -> Iterator[tuple[str, int]]:
        """Topics with their counts since they are remembered, most recently used first."""
        self._merge()
        return ((topic.decode(), count) for topic, count in reversed(self._kept.items()))
