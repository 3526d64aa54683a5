"""Transactions: whole or absent for every reader; nothing appears behind what was read."""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.simulation.oracle.model import Model
from tests.simulation.oracle.outcomes import Outcome
from tests.simulation.world import World

Place = tuple[str, int, int]
"""Stream, partition, offset."""


@dataclass
class Tried:
    """One transaction: what became of it, and the records that it wrote for certain."""

    kind: str = "unsure"
    records: set[str] = field(default_factory=set)


@dataclass
class TransactionOracle(Model):
    """All transactions of a run, by name; a record's value is ``name:number``."""

    broker = "stream"
    world: World
    tried: dict[str, Tried] = field(default_factory=dict)
    read: dict[Place, str] = field(default_factory=dict)
    """What readers saw on the way."""
    ends: dict[tuple[str, int], int] = field(default_factory=dict)
    """How far each partition was read on the way."""

    def ended(self, name: str, ended: Outcome) -> None:
        self.tried[name].kind = ended.kind

    def saw(self, stream: str, partition: int, start: int, records: list[tuple[int, str]]) -> None:
        """A reader that asked from ``start`` on got these."""
        for offset, value in records:
            self.read[stream, partition, offset] = value
            tried = self.tried.get(value.partition(":")[0])
            if tried is not None and tried.kind == "refused":
                self._found("rolled back", f"{value} at {stream}/{partition}/{offset} is visible")
            if tried is not None and tried.kind == "open":
                self._found("stable offset", f"{value} is visible while its transaction is open")
        if records and start <= self.ends.get((stream, partition), 0):
            self.ends[stream, partition] = records[-1][0] + 1

    def at_end(self, found: dict[Place, str]) -> None:
        """``found``: everything that is visible once it is quiet."""
        values = set(found.values())
        for name, tried in self.tried.items():
            seen = {value for value in tried.records if value in values}
            if tried.kind == "ok" and seen != tried.records:
                self._found("lost record", f"{name} was committed; {tried.records - seen} is gone")
            if tried.kind == "refused" and seen:
                self._found("rolled back", f"{name} was rolled back; {seen} is visible")
            if seen and seen != tried.records:
                self._found("whole or absent", f"{name}: {seen} of {tried.records} is visible")
        for place, value in found.items():
            stream, partition, offset = place
            if offset < self.ends.get((stream, partition), 0) and place not in self.read:
                self._found("stable offset", f"{value} appeared at {place}, behind what was read")
        for place, value in self.read.items():
            if found.get(place) != value:
                self._found("lost record", f"{value} was read at {place}, and is gone")

    def _found(self, check: str, text: str) -> None:
        self.world.found(check, f"transactions: {text}")
