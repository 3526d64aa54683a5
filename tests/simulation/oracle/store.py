"""The store: each key is linearizable, also where nobody knows whether a write ran."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tests.simulation.oracle.outcomes import Outcome
from tests.simulation.world import World

ABSENT = "absent"


@dataclass
class Register:
    """One key with one writer: what it may hold."""

    world: World
    key: str
    may_be: set[Any] = field(default_factory=lambda: {ABSENT})
    late: set[Any] = field(default_factory=set)
    """What unsure writes may still bring, at any time."""
    ever: set[Any] = field(default_factory=lambda: {ABSENT})
    lives: int = 0
    """How often the server had started when this was last brought up to date."""

    def server_started(self, lives: int, *, kept: bool) -> None:
        """A server that ended has forgotten the key, or kept an older state of it."""
        if lives != self.lives:
            self.lives = lives
            self.may_be |= self.ever if kept else {ABSENT}

    def wrote(self, ended: Outcome, value: Any) -> None:
        if ended.ok:
            self.may_be = {value}
        elif ended.unsure:
            self.late.add(value)
        if ended.kind != "refused":
            self.ever.add(value)

    def read(self, value: Any) -> None:
        if value not in self.may_be and value not in self.late:
            self.world.found(
                "store register",
                f"{self.key} holds {value!r}, not one of "
                f"{sorted(map(str, self.may_be | self.late))}",
            )
        self.may_be = {value}


@dataclass
class Counter:
    """A number with one writer: at least what was acknowledged, at most that and the unsure."""

    world: World
    key: str
    low: int = 0
    high: int = 0
    lives: int = 0

    def server_started(self, lives: int, *, kept: bool) -> None:
        if lives != self.lives:
            self.lives = lives
            self.low = 0

    def added(self, ended: Outcome) -> None:
        if ended.ok:
            self._check(ended.value - 1)
            unsure = self.high - self.low
            self.low, self.high = ended.value, ended.value + unsure
        elif ended.unsure:
            self.high += 1

    def _check(self, before: int) -> None:
        if not self.low <= before <= self.high:
            self.world.found(
                "store counter", f"{self.key} was {before}, not {self.low} to {self.high}"
            )


@dataclass
class LockModel:
    """One holder at a time, whose number is larger than every number before."""

    world: World
    name: str
    highest: int = 0
    holders: dict[str, tuple[int, float]] = field(default_factory=dict)
    """Who holds it for certain: number, and until when by the server's time."""

    def taken(self, who: str, number: int, until_s: float) -> None:
        if number <= self.highest:
            self.world.found(
                "fencing number", f"{self.name}: {who} got {number} after {self.highest}"
            )
        self.highest = max(self.highest, number)
        now_s = self.world.now_s
        for other, (held, ends_s) in self.holders.items():
            if other != who and now_s < ends_s:
                self.world.found(
                    "one holder",
                    f"{self.name}: {who} holds it with {number} while {other} with {held} "
                    f"holds it until {ends_s:.3f}",
                )
        self.holders[who] = (number, until_s)

    def ended(self, who: str) -> None:
        self.holders.pop(who, None)

    def server_ended(self) -> None:
        """Leases live in memory: with the server they end."""
        self.holders.clear()
