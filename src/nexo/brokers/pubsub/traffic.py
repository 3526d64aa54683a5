"""How many messages each topic got: a bounded number of topics, those used last."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

MOST = 4_096
"""Topics remembered."""
LONGEST = 512
"""Longer topics are not counted: they could fill the memory."""


class Traffic:
    """Counts on the way of every message, so it does little there.

    New counts gather aside, and are merged when someone looks or when they are as many as are
    remembered; what was merged longest ago is forgotten then.
    """

    __slots__ = ("_kept", "_most", "_new")

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._new: dict[bytes, int] = {}
        self._kept: dict[bytes, int] = {}

    def count(self, topics: list[bytes]) -> None:
        """A message for each of these topics was published."""
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
        """Topics and how many messages each got since it is remembered, the last used first."""
        self._merge()
        return ((topic.decode(), count) for topic, count in reversed(self._kept.items()))
