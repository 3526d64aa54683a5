"""Shared groups: everything is delivered, to one at a time, and what was acked never again."""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.simulation.oracle.model import Model
from tests.simulation.world import World

Place = tuple[int, int]


@dataclass
class GroupOracle(Model):
    """The records of one stream as one group saw them."""

    broker = "stream"
    world: World
    name: str
    published: dict[Place, str] = field(default_factory=dict)
    """What was acknowledged, and when it was, is there for good."""
    delivered: set[Place] = field(default_factory=set)
    acked: dict[Place, float] = field(default_factory=dict)
    """When an ack was confirmed."""
    holders: dict[Place, tuple[str, float]] = field(default_factory=dict)
    """Who certainly holds a record, and until when."""
    published_s: dict[Place, float] = field(default_factory=dict)
    taken_over_s: float = -1.0
    """When another machine went on without the newest."""

    def was_published(self, place: Place, value: str, asked_s: float) -> None:
        """It was acknowledged."""
        if asked_s > self.taken_over_s:
            self.published[place] = value
            self.published_s[place] = self.world.now_s

    def was_acked(self, place: Place, asked_s: float) -> None:
        """An ack was confirmed."""
        if asked_s > self.taken_over_s:
            self.acked[place] = self.world.now_s

    def taken_over(self, since_s: float, *, lossy: bool) -> None:
        self.taken_over_s = self.world.now_s
        for place, at_s in list(self.published_s.items()):
            if lossy or at_s >= since_s:
                del self.published[place], self.published_s[place]
        for place, at_s in list(self.acked.items()):
            if lossy or at_s >= since_s:
                del self.acked[place]

    def delivering(
        self, who: str, place: Place, value: str, began_s: float, lease_s: float
    ) -> None:
        """A fetch that began then returned a record."""
        self.world.note(f"{who} gets {place} of group {self.name}")
        if place in self.acked and self.acked[place] < began_s:
            self._found("finished record", f"{place} came again after its ack was confirmed")
        known = self.published.get(place)
        if known is not None and known != value:
            self._found("moved record", f"{place} is {value}, not {known}")
        holder = self.holders.get(place)
        if holder is not None and holder[0] != who and self.world.now_s < holder[1]:
            self._found("one holder", f"{place} is with {holder[0]} and with {who}")
        self.holders[place] = who, began_s + 0.9 * lease_s  # the steady clock catches up
        self.delivered.add(place)

    def settled(self, place: Place) -> None:
        self.holders.pop(place, None)

    def disturbed(self) -> None:
        """Leases end with connections."""
        self.holders.clear()

    def server_ended(self) -> None:
        self.disturbed()

    def at_end(self) -> None:
        missing = [place for place in self.published if place not in self.delivered]
        if missing:
            self._found("lost record", f"{missing[:5]} of {len(missing)} were never delivered")

    def _found(self, check: str, text: str) -> None:
        self.world.found(check, f"group {self.name}: {text}")
