"""What clients saw of a broker, and what must never be found in it (MEASURE, faults).

A load notes everything it does and hears; `History.findings` then counts what breaks a
promise. Items are numbers that are sent once each, so a second sight of one is a fact.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, fields

Place = tuple[int, int]
"""Partition and offset."""


@dataclass(frozen=True)
class Findings:
    """Counts of broken promises; all zero is what every test asks for."""

    lost: int = 0
    """Confirmed, and gone without having been acknowledged."""
    duplicated: int = 0
    """There twice, or seen again after the acknowledgement was confirmed."""
    invented: int = 0
    """There, and never sent."""
    reordered: int = 0
    """Behind an item of the same key that was sent later."""
    reused_places: int = 0
    """Two items confirmed at one offset, or an item elsewhere than confirmed."""
    gaps: int = 0
    """Offsets missing between the first and the last of a partition."""
    aborted_reads: int = 0
    """Seen although its transaction was rolled back."""
    late_acks: int = 0
    """Accepted from a consumer whose lease had passed to another."""

    def __add__(self, other: Findings) -> Findings:
        return Findings(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    def __bool__(self) -> bool:
        return any(getattr(self, f.name) for f in fields(self))


class History:
    """Everything one load did and saw, in order.

    ``acked_items_go``: whether an acknowledged item leaves the broker, as in a queue.
    """

    def __init__(self, *, acked_items_go: bool) -> None:
        self._acked_items_go = acked_items_go
        self._sent: dict[int, str] = {}
        self._places: dict[int, Place | None] = {}
        self._holder: dict[int, str] = {}
        self._acked: set[int] = set()
        self._maybe_acked: set[int] = set()
        self._aborted: set[int] = set()
        self._seen: set[int] = set()
        self._seen_after_ack = 0
        self._late_acks = 0
        self._stored: list[tuple[int, Place | None]] = []

    # -- what the load does ------------------------------------------------------------

    def sent(self, items: Iterable[int], key: str = "") -> None:
        """About to be sent, in this order among the items of ``key``."""
        self._sent.update(dict.fromkeys(items, key))

    def confirmed(self, items: Iterable[int], places: Iterable[Place] | None = None) -> None:
        """The broker said yes."""
        if places is None:
            self._places.update(dict.fromkeys(items))
        else:
            self._places.update(zip(items, places, strict=True))

    def aborted(self, items: Iterable[int]) -> None:
        """Their transaction was rolled back."""
        self._aborted.update(items)

    def delivered(self, items: Iterable[int], consumer: str = "") -> None:
        """Handed to a consumer."""
        for item in items:
            self._seen_after_ack += item in self._acked
            self._holder[item] = consumer
            self._seen.add(item)

    def acking(self, items: Iterable[int]) -> None:
        """About to be acknowledged: from now on each may be gone."""
        self._maybe_acked.update(items)

    def acked(self, items: Iterable[int], consumer: str = "") -> None:
        """The broker confirmed the acknowledgement."""
        for item in items:
            self._late_acks += self._holder.get(item, consumer) != consumer
            self._acked.add(item)

    def stored(self, items: Iterable[int], places: Iterable[Place] | None = None) -> None:
        """Found in the broker at the end, in the order it gives them out."""
        items = list(items)
        self._stored += zip(
            items, places if places is not None else [None] * len(items), strict=True
        )

    # -- what it came to -----------------------------------------------------------------

    @property
    def operations(self) -> int:
        """Confirmed writes and acknowledgements."""
        return len(self._places) + len(self._acked)

    @property
    def writes(self) -> int:
        """Confirmed writes."""
        return len(self._places)

    def findings(self) -> Findings:
        """Everything that breaks a promise."""
        there = Counter(item for item, _ in self._stored)
        gone = self._maybe_acked if self._acked_items_go else set()
        back = self._acked & there.keys() if self._acked_items_go else set()
        return Findings(
            lost=len(self._places.keys() - there.keys() - gone),
            duplicated=sum(n - 1 for n in there.values()) + len(back) + self._seen_after_ack,
            invented=len((there.keys() | self._seen) - self._sent.keys()),
            reordered=self._reordered(),
            reused_places=self._reused(),
            gaps=self._gaps(),
            aborted_reads=len(self._aborted & (there.keys() | self._seen)),
            late_acks=self._late_acks,
        )

    def _reordered(self) -> int:
        position = {item: at for at, item in enumerate(self._sent)}
        last: dict[tuple[str, int], int] = {}
        wrong = 0
        for item, place in self._stored:
            if place is None or item not in position:
                continue
            line = (self._sent[item], place[0])
            wrong += position[item] < last.get(line, -1)
            last[line] = max(position[item], last.get(line, -1))
        return wrong

    def _reused(self) -> int:
        confirmed = [place for place in self._places.values() if place is not None]
        moved = sum(
            place != self._places[item]
            for item, place in self._stored
            if place is not None and self._places.get(item) is not None
        )
        return len(confirmed) - len(set(confirmed)) + moved

    def _gaps(self) -> int:
        offsets: defaultdict[int, set[int]] = defaultdict(set)
        for _, place in self._stored:
            if place is not None:
                offsets[place[0]].add(place[1])
        return sum(max(found) - min(found) + 1 - len(found) for found in offsets.values())
