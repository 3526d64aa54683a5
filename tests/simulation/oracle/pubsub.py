"""Pub/sub: in order per publisher and topic, and what was retained last stays."""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.simulation.oracle.model import Model
from tests.simulation.world import World


@dataclass
class TopicModel(Model):
    """One topic with one publisher, whose values are numbers that grow."""

    broker = "pubsub"
    world: World
    topic: str
    asked: int = 0
    known: int = 0
    """The last one that was acknowledged."""
    heard: dict[str, int] = field(default_factory=dict)
    """By subscription: the last number."""
    lost_power_s: float = -1.0

    def published(self, number: int, asked_s: float) -> None:
        """It was acknowledged; the reply may have outlived what the power took."""
        if asked_s > self.lost_power_s:
            self.known = max(self.known, number)

    def hears(self, who: str, number: int) -> None:
        before = self.heard.get(who, -1)
        if number <= before or number > self.asked:
            self.world.found(
                "order", f"topic {self.topic}: {who} got {number} after {before} of {self.asked}"
            )
        self.heard[who] = number

    def power_lost(self, window_s: float) -> None:
        self.lost_power_s = self.world.now_s
        self.known = 0  # retained messages are synced within the window

    def taken_over(self, since_s: float, *, lossy: bool) -> None:
        self.power_lost(0.0)  # unless they are `replicated`

    def at_end(self, retained: int | None) -> None:
        if (retained is None and self.known) or (retained is not None and retained < self.known):
            self.world.found(
                "retained", f"topic {self.topic} retains {retained}, {self.known} was acknowledged"
            )
