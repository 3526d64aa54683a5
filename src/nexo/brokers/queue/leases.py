"""Leases: who works on which jobs, and until when."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice

from nexo.brokers.queue.batches import JobRange
from nexo.brokers.queue.ledger import flatten, pairs
from nexo.errors import InvalidInput, LeaseLost
from nexo.options.queue import MAX_POP

_STRIDE = 256


@dataclass(slots=True)
class Lease:
    """The right of one consumer to work on the jobs of one pop until ``expires_ms``.

    ``token`` fences: every settlement carries it, so a worker that overslept cannot finish
    a job that another worker now holds (SPEC D4).
    """

    token: int
    holder: int
    lease_ms: int
    expires_ms: int
    runs: list[JobRange]
    count: int
    left: set[int] | None = field(default=None)
    """Jobs not settled yet; None means all, until some are settled separately."""
    reports: bool = False
    """Whether the worker reports which handlers have begun."""
    begun: dict[int, int] = field(default_factory=dict)
    """Jobs whose handlers have begun, and when."""
    granted_ms: int = 0
    granted: int = 0
    """How many jobs there were at first."""

    def stretches(self) -> Iterable[int]:
        """Which runs of `_STRIDE` job numbers the lease touches."""
        if len(self.runs) == 1:
            ((lo, hi),) = self.runs
            return range(lo // _STRIDE, (hi - 1) // _STRIDE + 1)
        return {
            stretch
            for lo, hi in self.runs
            for stretch in range(lo // _STRIDE, (hi - 1) // _STRIDE + 1)
        }

    def counted(self) -> list[JobRange]:
        """The jobs whose delivery counts although their worker is gone (SPEC D5).

        A worker that does not report begins jobs in order, so the first unsettled job counts. A
        job that kills its workers becomes the first, and dies.
        """
        if self.reports:
            return [(job, job + 1) for job in sorted(self.begun) if self.holds(job)]
        return [(lo, lo + 1) for lo, _ in islice(self.remaining(), 1)]

    def remaining(self) -> Iterator[JobRange]:
        if self.left is None:
            return iter(self.runs)
        return pairs(flatten((job, job + 1) for job in sorted(self.left)))

    def holds(self, job: int) -> bool:
        """Whether ``job`` is leased and not settled."""
        if self.left is None:
            return any(lo <= job < hi for lo, hi in self.runs)
        return job in self.left

    def split(self) -> set[int]:
        """The unsettled jobs as a set, built only when some are settled separately."""
        if self.left is None:
            self.left = {job for lo, hi in self.runs for job in range(lo, hi)}
        return self.left


class Leases:
    """Every lease of a queue, by token and by holder."""

    __slots__ = ("_by_holder", "_by_token", "_near", "_next_token", "jobs")

    def __init__(self, first_token: int) -> None:
        self._by_token: dict[int, Lease] = {}
        self._by_holder: dict[int, dict[int, Lease]] = {}
        self._near: dict[int, dict[int, Lease]] = {}
        """The leases on some of each `_STRIDE` jobs, so that one job's is found among few."""
        self._next_token = first_token
        self.jobs = 0
        """Jobs leased now."""

    def __len__(self) -> int:
        return len(self._by_token)

    def __iter__(self) -> Iterator[Lease]:
        return iter(self._by_token.values())

    def grant(
        self, holder: int, runs: list[JobRange], lease_ms: int, now_ms: int, reports: bool = False
    ) -> Lease:
        """A new lease on jobs that nobody holds."""
        count = sum(hi - lo for lo, hi in runs)
        lease = Lease(
            self._next_token, holder, lease_ms, now_ms + lease_ms, runs, count,
            reports=reports, granted_ms=now_ms, granted=count,
        )  # fmt: skip
        self._next_token += 1
        self._by_token[lease.token] = lease
        self._by_holder.setdefault(holder, {})[lease.token] = lease
        for stretch in lease.stretches():
            self._near.setdefault(stretch, {})[lease.token] = lease
        self.jobs += count
        return lease

    def get(self, token: int) -> Lease | None:
        return self._by_token.get(token)

    def held(self, token: int) -> Lease:
        """The lease with this token; `LeaseLost` if it ended."""
        lease = self._by_token.get(token)
        if lease is None:
            raise LeaseLost("the lease ended: it expired, or its connection was lost")
        return lease

    def hold(self, job: int) -> bool:
        """Whether any lease holds ``job``."""
        near = self._near.get(job // _STRIDE)
        return near is not None and any(lease.holds(job) for lease in near.values())

    def of_holder(self, holder: int) -> list[Lease]:
        return list(self._by_holder.get(holder, {}).values())

    def find(self, holder: int, job: int) -> Lease | None:
        """The lease under which ``holder`` works on ``job``."""
        near = self._near.get(job // _STRIDE, {}).values()
        return next((each for each in near if each.holder == holder and each.holds(job)), None)

    def settle(self, lease: Lease, runs: Iterable[JobRange]) -> tuple[list[JobRange], list[int]]:
        """Remove jobs from a lease: returns those it held, and the numbers of those it did not."""
        wanted = list(runs)
        if lease.left is None and wanted == lease.runs:
            self.end(lease)
            return wanted, []
        left = lease.split()
        asked = {job for lo, hi in wanted for job in range(lo, hi)}
        held = sorted(asked & left)
        left -= asked
        self._settled(lease, len(held))
        refused = [] if len(held) == len(asked) else sorted(asked.difference(held))
        return list(pairs(flatten((job, job + 1) for job in held))), refused

    def end(self, lease: Lease) -> list[JobRange]:
        """End a lease; returns the jobs it still held."""
        remaining = list(lease.remaining())
        self._settled(lease, lease.count)
        return remaining

    def _settled(self, lease: Lease, count: int) -> None:
        lease.count -= count
        self.jobs -= count
        if lease.count:
            return
        del self._by_token[lease.token]
        for stretch in lease.stretches():
            near = self._near[stretch]
            del near[lease.token]
            if not near:
                del self._near[stretch]
        tokens = self._by_holder[lease.holder]
        del tokens[lease.token]
        if not tokens:
            del self._by_holder[lease.holder]


def check_runs(runs: Iterable[JobRange]) -> list[JobRange]:
    """Reject ranges that no lease can hold, before they are expanded."""
    checked = list(runs)
    if any(lo >= hi for lo, hi in checked) or sum(hi - lo for lo, hi in checked) > MAX_POP:
        raise InvalidInput(f"ranges must be ascending and name at most {MAX_POP} jobs")
    return checked
