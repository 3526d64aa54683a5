"""A stream: acknowledged records are at their offset, and no offset is given twice."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from tests.simulation.oracle.model import Model
from tests.simulation.oracle.outcomes import Outcome
from tests.simulation.world import World


@dataclass
class Sent:
    """One record."""

    value: str
    producer: str
    number: int
    key: str | None = None
    kind: str = "unsure"
    place: tuple[int, int] | None = None
    sent_s: float = 0.0
    acked_s: float = 0.0


@dataclass
class StreamOracle(Model):
    """All records of one stream."""

    broker = "stream"
    world: World
    name: str
    window_s: float
    """Acknowledged records this young may be lost with the power; 0: none."""
    records: dict[str, Sent] = field(default_factory=dict)
    given: dict[tuple[int, int], str] = field(default_factory=dict)
    """By place: the value for which a client was told it. None is told again for another one."""
    lost_power_s: float = -1.0
    """When power was lost last."""
    replicated: bool = False
    """Whether what is acknowledged outlives the machine."""
    taken_over_s: float = -1.0
    """When another machine went on without the newest."""

    def sending(self, value: str, producer: str, number: int, key: str | None) -> Sent:
        self.records[value] = sent = Sent(value, producer, number, key)
        sent.sent_s = self.world.now_s
        return sent

    def sent(self, sent: Sent, ended: Outcome) -> None:
        sent.kind = ended.kind
        if not ended.ok:
            return
        place = (ended.value.partition, ended.value.offset)
        other = self.given.setdefault(place, sent.value)
        if other != sent.value:
            self._found("offset twice", f"{place} was given to {other} and to {sent.value}")
        lost_s = max(self.lost_power_s if self.window_s else -1.0, self.taken_over_s)
        if sent.sent_s <= lost_s:  # the reply outlived the record
            sent.kind = "unsure"
            return
        sent.acked_s = self.world.now_s
        sent.place = place

    def power_lost(self, window_s: float) -> None:
        """What was acknowledged just before may be gone, if it need not be synced."""
        self.lost_power_s = self.world.now_s
        if not self.window_s:
            return
        since_s = self.world.now_s - max(self.window_s, window_s)
        for sent in self.records.values():
            if sent.kind == "ok" and sent.acked_s >= since_s:
                sent.kind = "unsure"
                sent.place = None

    def taken_over(self, since_s: float, *, lossy: bool) -> None:
        if self.replicated and not lossy:
            return
        self.taken_over_s = self.world.now_s
        for sent in self.records.values():
            if sent.kind == "ok" and (lossy or sent.acked_s >= since_s):
                sent.kind = "unsure"
                sent.place = None

    @property
    def may_be_damaged(self) -> bool:
        """Whether sectors in the middle of what was not synced may be gone."""
        return self.window_s > 0 and self.lost_power_s >= 0

    def at_end(self, found: Iterable[tuple[int, int, str]]) -> None:
        """Everything that the stream holds: partition, offset, value, in order."""
        seen: dict[str, tuple[int, int]] = {}
        newest: dict[tuple[str, str], int] = {}
        for partition, offset, value in found:
            sent = self.records.get(value)
            if sent is None:
                self._found("invented record", f"{value!r} at {partition}/{offset} was never sent")
                continue
            if value in seen:
                self._found("record twice", f"{value} at {seen[value]} and {(partition, offset)}")
            seen[value] = (partition, offset)
            if sent.kind == "refused":
                self._found("refused record", f"{value} was refused and is at {partition}/{offset}")
            if sent.place is not None and sent.place != (partition, offset):
                self._found("moved record", f"{value} of {sent.place} is at {partition}/{offset}")
            if sent.kind == "ok" and sent.key is not None:
                lane = (sent.key, sent.producer)
                if newest.get(lane, -1) > sent.number:
                    self._found("order", f"{value} is behind number {newest[lane]}")
                newest[lane] = sent.number
        for value, sent in self.records.items():
            if sent.kind == "ok" and value not in seen:
                self._found("lost record", f"{value} of {sent.place} is gone")

    def _found(self, check: str, text: str) -> None:
        self.world.found(check, f"stream {self.name}: {text}")
