"""Counts what each connection sends and receives, and times requests by opcode.

A request takes from its arrival until its reply is written.

Nothing is done per request that is answered at once: all requests of one read share one
reading of the clock and one addition. Those that wait, for a sync or for an event, are
recorded one by one and counted together at the end of the turn that answers them.
"""

from __future__ import annotations

from collections.abc import Iterable
from time import monotonic_ns
from typing import Any, TypeAlias

from nexo.dialects.nexo.inbox import Drain, Inbox
from nexo.model import Broker
from nexo.model.histogram import Histogram
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


class Meter:
    """The counters of one session."""

    __slots__ = (
        "_by_op", "_left", "_timings", "arrived_ns", "bytes_in", "bytes_out", "requests", "waiting",
    )  # fmt: skip

    def __init__(self, timings: Timings) -> None:
        self._timings, self._by_op = timings, timings.by_op
        self.arrived_ns = monotonic_ns()
        """When the last bytes came, on the monotonic clock."""
        self.bytes_in = self.bytes_out = self.requests = 0
        self.waiting: dict[int, UnansweredRequest] = {}
        """By id, the requests not answered during the read in which they arrived."""
        self._left: list[int] = []
        """Opcodes of the requests that the current read has left waiting."""

    def read(self, size: int, inbox: Inbox | Drain) -> int:
        """A read's requests have run, and their replies so far are written; returns the time."""
        now_ns, count = monotonic_ns(), inbox.count
        if self._timings.late:
            self._timings.written()
        self.bytes_in += size
        self.requests += count
        if inbox.runs or self._left:
            self._count_answered(inbox, now_ns - self.arrived_ns)
        else:
            took_ns, times = now_ns - self.arrived_ns, self._by_op[inbox.op]
            times.counts[took_ns.bit_length()] += count
            times.total_ns += took_ns * count
        return now_ns

    def _count_answered(self, inbox: Inbox | Drain, took_ns: int) -> None:
        """Count the requests of several opcodes, but for those that were left waiting."""
        by_op, left = self._by_op, self._left
        if inbox.runs or len(left) < inbox.count:
            by_op[inbox.op].add(took_ns, inbox.count)
            for op, count in inbox.runs:
                self.requests += count
                by_op[op].add(took_ns, count)
            for op in left:
                by_op[op].add(took_ns, -1)
        left.clear()

    def left(self, op: int, request_id: int) -> None:
        """A request was run and has no reply yet."""
        self.waiting[request_id] = (op, self.arrived_ns)
        self._left.append(op)

    def answered(self, request_id: int) -> None:
        """A reply was sent, perhaps to a request that waited."""
        request = self.waiting.pop(request_id, None)
        if request is None:
            return
        if self._left and request[1] == self.arrived_ns:
            self._left.remove(request[0])  # within its read: it is counted with that
        else:
            self._timings.late.append(request)
