"""The store: each key is linearizable, also where nobody knows whether a write ran."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf
from typing import Any

from tests.simulation.oracle.model import Model
from tests.simulation.oracle.outcomes import Outcome
from tests.simulation.world import World

ABSENT = "absent"
_REMEMBERED = 300
_SLACK_S = 0.2
"""A time to live ends so much later at most."""


@dataclass(eq=False)
class Write:
    """A value that a key got, and between which moments it did."""

    value: Any
    began_s: float
    ended_s: float = inf
    certain: bool = False
    until_s: float = inf
    """When its time to live has ended for certain."""
    asked: bool = False
    """Whether its caller still waits: the client may hold it for the next server."""


@dataclass
class KeyModel(Model):
    """One key with any number of writers; no two write the same value."""

    broker = "store"
    world: World
    key: str
    kept: bool
    """Whether a restart finds an older state instead of none."""
    writes: list[Write] = field(default_factory=lambda: [Write(ABSENT, -1.0, -1.0, certain=True)])
    _restart: list[Write] = field(default_factory=list)
    _stopped: bool | None = None
    """Whether its last stop was clean, until it serves again; None after a crash."""
    _served: bool = True

    def writing(self, value: Any) -> Write:
        """A write begins."""
        write = Write(value, self.world.now_s, asked=True)
        self.writes.append(write)
        del self.writes[:-_REMEMBERED]
        return write

    def wrote(self, write: Write, ended: Outcome, ttl_s: float | None = None) -> None:
        """It ended; a refused one has changed nothing."""
        write.asked = False
        if ended.kind == "refused" or ended.value is False:
            if write in self.writes:
                self.writes.remove(write)
            return
        if ended.ok and write.ended_s == inf:
            write.ended_s, write.certain = self.world.now_s, True
        if ttl_s is not None:
            write.until_s = write.ended_s + ttl_s + _SLACK_S
            ends = Write(ABSENT, write.began_s + ttl_s, write.until_s)
            self.writes.append(ends)

    def server_stopped(self, *, clean: bool) -> None:
        self._stopped = clean

    def server_ended(self) -> None:
        now_s = self.world.now_s
        for write in self.writes:
            if not write.asked:
                write.ended_s = min(write.ended_s, now_s)
            write.until_s = inf
        if not self._stopped:  # a clean stop has saved all keys, for the next start
            is_sure = not self.kept and self._stopped is None and self._served
            values = {ABSENT, *(write.value for write in self.writes)} if self.kept else {ABSENT}
            added = [Write(value, now_s, certain=is_sure) for value in sorted(values, key=str)]
            self._restart += added
            self.writes += added
        self._stopped, self._served = None, False

    def server_started(self) -> None:
        for write in self._restart:
            write.ended_s = min(write.ended_s, self.world.now_s)
        self._restart.clear()
        self._served = True

    def read(self, value: Any, began_s: float) -> None:
        """A read that began then returned the value."""
        now_s = self.world.now_s
        sources = [write for write in self.writes if write.value == value]
        if not any(self._may_be(write, began_s, now_s) for write in sources):
            newest = max(self.writes, key=lambda write: write.ended_s if write.certain else -1)
            self.world.found(
                "store register",
                f"{self.key} holds {value!r}; the last write was {newest.value!r} at "
                f"{newest.ended_s:.3f}",
            )

    def _may_be(self, write: Write, began_s: float, now_s: float) -> bool:
        if write.began_s > now_s or began_s > write.until_s:
            return False
        return not any(
            other.certain and other.began_s > write.ended_s and other.ended_s < began_s
            for other in self.writes
        )


@dataclass
class Counter(Model):
    """A number that many add 1 to: each sum is new, and later ones are larger."""

    broker = "store"
    world: World
    key: str
    asked: int = 0
    sums: dict[int, float] = field(default_factory=dict)
    """Each sum that was acknowledged in this life of the server, and when."""
    lives: int = 0

    def adding(self) -> tuple[int, float]:
        self.asked += 1
        return self.lives, self.world.now_s

    def added(self, asked: tuple[int, float], ended: Outcome) -> None:
        lives, asked_s = asked
        if not ended.ok or lives != self.lives:
            return
        total = ended.value
        before = max((one for one, at_s in self.sums.items() if at_s < asked_s), default=0)
        if total in self.sums or not before < total <= self.asked:
            self.world.found(
                "store counter",
                f"{self.key} is {total} after {before}, {self.asked} times asked for",
            )
        self.sums[total] = self.world.now_s

    def server_ended(self) -> None:
        self.lives += 1
        self.sums.clear()


@dataclass
class LockModel(Model):
    """One holder at a time, whose number is larger than every number before."""

    broker = "store"
    world: World
    name: str
    highest: int = 0
    holders: dict[str, tuple[int, Callable[[], bool]]] = field(default_factory=dict)
    """Numbers of those who hold it, and whether they still say so."""

    def taken(self, who: str, number: int, held: Callable[[], bool]) -> None:
        if number <= self.highest:
            self.world.found(
                "fencing number", f"{self.name}: {who} got {number} after {self.highest}"
            )
        self.highest = max(self.highest, number)
        for other, (its_number, still) in self.holders.items():
            if held() and still():
                self.world.found(
                    "one holder",
                    f"{self.name}: {who} holds it with {number}, and {other} with {its_number}",
                )
        self.holders[who] = (number, held)

    def ended(self, who: str) -> None:
        self.holders.pop(who, None)

    def server_ended(self) -> None:
        """Leases live in memory: with the server they end."""
        self.holders.clear()
