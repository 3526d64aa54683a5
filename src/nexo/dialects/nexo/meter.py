"""What one connection has sent and received, and how long its requests take.

Nothing is done per request that is answered at once: all requests of one read share one
reading of the clock and one addition. Those that wait, for a sync or for an event, are
recorded one by one and counted together at the end of the turn that answers them.
"""

from __future__ import annotations

from time import monotonic_ns

from nexo.dialects.nexo.inbox import Drain, Inbox
from nexo.dialects.nexo.timings import Timings, UnansweredRequest


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
