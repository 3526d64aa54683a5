"""How long requests take, by opcode: from their arrival until their replies are written."""

from __future__ import annotations

from collections.abc import Iterable
from time import monotonic_ns
from typing import Any, TypeAlias

from nexo.histogram import Histogram
from nexo.model import Broker
from nexo.protocol.ops import BROKER_OF, Op

_OPS = frozenset(Op)

UnansweredRequest: TypeAlias = tuple[int, int]
"""Opcode and arrival, in ns, of a request that has no reply yet."""


class Timings:
    """The request times of one host."""

    def __init__(self, brokers: Iterable[Broker]) -> None:
        here, elsewhere = frozenset(brokers), Histogram()
        self.by_op = [
            Histogram() if BROKER_OF[op] in here and op in _OPS else elsewhere for op in range(256)
        ]
        """All other opcodes share one: requests of other brokers are timed where they run."""
        self.late: list[UnansweredRequest] = []
        """Requests that waited, and whose replies are sent at the end of this turn."""

    def written(self) -> int:
        """The replies of this turn are written; returns the time, or 0 if none had waited."""
        if not self.late:
            return 0
        now_ns, answered, self.late = monotonic_ns(), self.late, []
        by_op = self.by_op
        for op, arrived_ns in answered:
            took_ns, times = now_ns - arrived_ns, by_op[op]
            times.counts[took_ns.bit_length()] += 1
            times.total_ns += took_ns
        return now_ns

    def status(self, broker: Broker) -> dict[str, dict[str, Any]]:
        """The times of a broker's requests, by the name of their opcode."""
        return {
            op.name.lower(): self.by_op[op].status()
            for op in Op
            if BROKER_OF[op] is broker and self.by_op[op].total_ns
        }
