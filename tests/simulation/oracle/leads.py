"""Who leads: never two that acknowledge, and who goes on with which log."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from nexo.errors import Corrupt
from nexo.model import Broker
from nexo.replication import lease as leases
from nexo.replication.log_objects import FORMAT, server_name
from nexo.replication.objects import number_of
from tests.simulation.bucket import Put
from tests.simulation.world import S, World


@dataclass(frozen=True)
class Takeover:
    """A claim by whoever has not all that its predecessor had."""

    broker: str
    by: str
    since_s: float
    """What was acknowledged before is in the log."""

    def __str__(self) -> str:
        return f"{self.by} takes over {self.broker} as of {self.since_s:.3f}"


@dataclass
class LeadOracle:
    """Terms in the order in which they began, and what was acknowledged in each."""

    world: World
    terms: dict[str, int] = field(default_factory=dict)
    acked: dict[Broker, dict[int, tuple[float, str]]] = field(default_factory=dict)
    """By broker and term: when the first acknowledgement arrived, and who gave it."""
    _last: dict[str, tuple[str, int]] = field(default_factory=dict)
    """By broker: who wrote the newest log object, and when its contents were gathered."""
    _gathered: dict[tuple[str, str], int] = field(default_factory=dict)
    """By key and writer of log objects: when the newest of their contents were gathered."""
    _lost: set[str] = field(default_factory=set)
    """Servers whose folder was lost; they come back with another name."""

    def watch(self, broker: str, shipper: Any) -> None:
        """Note when the contents of each put are gathered.

        They wait while another put is under way; what is recorded then may leave with a later one.
        """
        gather, next_put = shipper.gather, shipper.next_put
        tickets: dict[int, int] = {}

        def gathering(operations: Sequence[Any]) -> int:
            ticket: int = gather(operations)
            tickets[ticket] = self.world.now_ns
            return ticket

        def putting(now_ms: int) -> Any:
            put = next_put(now_ms)
            if put is not None and put.ticket in tickets:
                self._gathered[f"{broker}/{put.key}", shipper.writer] = tickets[put.ticket]
            return put

        shipper.gather, shipper.next_put = gathering, putting

    def put(self, put: Put) -> Takeover | None:
        """An object was created; returns the takeover that it is, if it is one."""
        kind = put.key.split("/")
        if kind[0] == "lease":
            lease = leases._FORMAT.unpack(put.data, number_of(put.key))
            if lease.term not in self.terms:
                self.terms[lease.term] = len(self.terms)
                self.world.story(f"{lease.address} asks for term {lease.term}")
        elif len(kind) == 3 and kind[1] == "log":
            return self._logged(kind[0], put)
        return None

    def _logged(self, broker: str, put: Put) -> Takeover | None:
        try:
            group = FORMAT.unpack(put.data, number_of(put.key))
        except Corrupt:
            return None
        last = self._last.get(broker)
        at_ns = self._gathered.get((put.key, group.writer), put.asked_ns)  # claims gather nothing
        self._last[broker] = group.writer, at_ns
        if last is None or server_name(last[0]) == server_name(group.writer):
            return None
        by = put.process.machine.name if put.process is not None else "nobody"
        return Takeover(broker, by, last[1] / S)

    def lost_folder(self, machine: str) -> None:
        self._lost.add(machine)

    def acknowledged(self, broker: Broker, term: str, who: str, asked_s: float) -> None:
        """A process that serves in a term has acknowledged what was asked for then."""
        number = self.terms.get(term, -1)
        acked = self.acked.setdefault(broker, {})
        for later, (first_s, other) in acked.items():
            if later > number and asked_s > first_s:
                self.world.found(
                    "two acknowledge",
                    f"{who} acknowledged what was asked for at {asked_s:.3f}, after {other} of a "
                    f"later term did at {first_s:.3f}",
                )
        acked.setdefault(number, (self.world.now_s, who))
