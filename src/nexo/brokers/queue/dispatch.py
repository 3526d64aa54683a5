"""State that need not survive a crash: waiting jobs, leases and rate limits.

All of it is rebuilt from the ledger on start.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from heapq import heapify, heappop, heappush
from math import ceil

from nexo.brokers.queue.batches import JobRange
from nexo.brokers.queue.delays import Delays
from nexo.brokers.queue.lanes import Lanes
from nexo.brokers.queue.leases import Lease, Leases
from nexo.brokers.queue.ledger import JobRun, Ledger, flatten, pairs

UNLIMITED = 1 << 62
_STALE = 1_024
"""Stale deadlines kept in a heap before it is rebuilt."""


class TokenBucket:
    """Holds up to ``burst`` tokens and gains ``per_s`` a second; starts full."""

    __slots__ = ("_at_ms", "_tokens", "burst", "per_s")

    def __init__(self, per_s: float, burst: int, now_ms: int) -> None:
        self.per_s = per_s
        self.burst = burst
        self._tokens = float(burst)
        self._at_ms = now_ms

    def available(self, now_ms: int) -> int:
        """Whole tokens available now."""
        gained = max(0, now_ms - self._at_ms) * self.per_s / 1_000
        self._tokens = min(self.burst, self._tokens + gained)
        self._at_ms = max(now_ms, self._at_ms)
        # A small excess, or rounding loses a token due at this very millisecond.
        return int(self._tokens + 1e-6)

    def take(self, count: int) -> None:
        """Use ``count`` tokens that `available` reported."""
        self._tokens -= count

    def next_ms(self) -> int:
        """When the next whole token is available."""
        missing = 1 - self._tokens
        return self._at_ms if missing <= 1e-6 else self._at_ms + ceil(missing * 1_000 / self.per_s)

    def full(self, now_ms: int) -> bool:
        """Whether it is full: then dropping it changes nothing."""
        return self.available(now_ms) >= self.burst


class Dispatch:
    """Waiting lines, delays, leases and limits of one queue."""

    __slots__ = (
        "_bucket", "_expiries", "_key_buckets", "_ledger", "_limits", "_unblocks", "_working",
        "delays", "lanes", "leases",
    )  # fmt: skip

    def __init__(self, ledger: Ledger, first_token: int, now_ms: int) -> None:
        self._ledger = ledger
        self.lanes = Lanes()
        self.delays = Delays()
        self.leases = Leases(first_token)
        self._expiries: list[tuple[int, int]] = []
        """(time, token): looked at again when due, as leases are renewed."""
        self._limits: list[tuple[int, int, int]] = []
        """(time, token, job): when each handler that has begun must have ended."""
        self._working: Counter[str] = Counter()
        self._key_buckets: dict[str, TokenBucket] = {}
        self._unblocks: list[tuple[int, str]] = []
        self._bucket: TokenBucket | None = None
        self._set_bucket(now_ms)
        self.wait([(0, ledger.next_job)], now_ms)

    # -- waiting --------------------------------------------------------------

    def wait(self, ranges: Iterable[JobRange], now_ms: int) -> None:
        """Queue the open jobs of these ranges, or delay them until they are due."""
        for job_range in ranges:
            for run in self._ledger.runs(*job_range):
                self.wait_alike(run, now_ms)

    def wait_alike(self, run: JobRun, now_ms: int) -> None:
        """Queue open jobs of one key and priority, or delay them until they are due."""
        lo, hi, priority, key, due_ms = run
        if due_ms > now_ms:
            self.delays.add(lo, hi, due_ms)
        else:
            self.lanes.add(priority, key if self._ledger.options.by_key else None, lo, hi)

    def promote(self, now_ms: int) -> None:
        """Move delayed jobs that are due to their lines."""
        if due := self.delays.pop_due(now_ms):
            self.wait(due, now_ms)

    def clear_waiting(self) -> list[JobRange]:
        """Remove everything from lines and delays."""
        found = [*self.lanes, *self.delays.clear()]
        self.lanes = Lanes()
        return sorted(found)

    def options_changed(self, now_ms: int) -> None:
        """Rebuild what depends on the options."""
        waiting, self.lanes = list(self.lanes), Lanes()
        self._key_buckets.clear()
        self._unblocks.clear()
        self._working = Counter(
            key for lease in self.leases for run in lease.remaining() for key in self._keys_in(run)
        )
        self._set_bucket(now_ms)
        self.wait(waiting, now_ms)

    # -- taking ---------------------------------------------------------------

    def take(self, limit: int, now_ms: int) -> tuple[list[JobRange], list[JobRange]]:
        """Up to ``limit`` jobs to deliver, best first, and those found to have expired."""
        taken: list[JobRange] = []
        expired: list[JobRange] = []
        left = min(limit, self._bucket.available(now_ms)) if self._bucket else limit

        def allowance(key: str | None) -> int:
            return self._allowance(key, now_ms)

        while left > 0 and (found := self.lanes.take(left, allowance)) is not None:
            key, (lo, hi) = found
            for batch, run in self._ledger.batches.runs(lo, hi):
                if 0 < batch.expires_ms <= now_ms:
                    expired.append(run)
                    continue
                taken.append(run)
                left -= run[1] - run[0]
                self._count_key(key, run[1] - run[0])
        if self._bucket is not None:
            self._bucket.take(sum(hi - lo for lo, hi in taken))
        return list(pairs(flatten(taken))), expired

    def _allowance(self, key: str | None, now_ms: int) -> int:
        if key is None:
            return UNLIMITED
        rules, allowed = self._ledger.options, UNLIMITED
        if rules.key_concurrency:
            allowed = rules.key_concurrency - self._working[key]
        if rules.key_rate and allowed > 0:
            allowed = min(allowed, self._key_rate(key, now_ms))
        return allowed

    def _key_rate(self, key: str, now_ms: int) -> int:
        rules = self._ledger.options
        bucket = self._key_buckets.get(key)
        if bucket is None:
            bucket = TokenBucket(rules.key_rate, rules.key_rate_burst, now_ms)
            self._key_buckets[key] = bucket
        allowed = bucket.available(now_ms)
        if allowed <= 0:
            heappush(self._unblocks, (bucket.next_ms(), key))
        return allowed

    def _count_key(self, key: str | None, count: int) -> None:
        if key is None:
            return
        self._working[key] += count
        if key in self._key_buckets:
            self._key_buckets[key].take(count)

    # -- leases ---------------------------------------------------------------

    def grant(
        self, holder: int, runs: list[JobRange], lease_ms: int, now_ms: int, reports: bool = False
    ) -> Lease:
        """Lease jobs that `take` returned."""
        lease = self.leases.grant(holder, runs, lease_ms, now_ms, reports)
        heappush(self._expiries, (lease.expires_ms, lease.token))
        if len(self._expiries) > 2 * len(self.leases) + _STALE:
            self._expiries = [(each.expires_ms, each.token) for each in self.leases]
            heapify(self._expiries)
        return lease

    def begin(self, lease: Lease, runs: Iterable[JobRange], now_ms: int) -> None:
        limit_ms = self._ledger.options.time_limit_ms
        for job in (job for job_range in runs for job in range(*job_range)):
            if job in lease.begun or not lease.holds(job):
                continue
            lease.begun[job] = now_ms
            if limit_ms:
                heappush(self._limits, (now_ms + limit_ms, lease.token, job))
        if len(self._limits) > 2 * self.leases.jobs + _STALE:
            self._limits = [entry for entry in self._limits if self._runs_still(*entry)]
            heapify(self._limits)

    def _runs_still(self, _due_ms: int, token: int, job: int) -> bool:
        lease = self.leases.get(token)
        return lease is not None and lease.holds(job)

    def overdue(self, now_ms: int) -> Iterator[tuple[Lease, int]]:
        """The leased jobs whose handlers have run too long, each with its lease."""
        while self._limits and self._limits[0][0] <= now_ms:
            _, token, job = heappop(self._limits)
            lease = self.leases.get(token)
            if lease is not None and lease.holds(job):
                yield lease, job

    def expired_leases(self, now_ms: int) -> Iterator[Lease]:
        """Leases that ran out. End each one before asking for the next."""
        while (due_ms := self._next_expiry()) is not None and due_ms <= now_ms:
            _, token = heappop(self._expiries)
            lease = self.leases.get(token)
            assert lease is not None
            yield lease

    def _next_expiry(self) -> int | None:
        heap = self._expiries
        while heap:
            due_ms, token = heap[0]
            lease = self.leases.get(token)
            if lease is not None and lease.expires_ms == due_ms:
                return due_ms
            heappop(heap)
            if lease is not None:
                heappush(heap, (lease.expires_ms, token))
        return None

    def ended(self, ranges: Iterable[JobRange]) -> None:
        """These jobs are no longer leased; call it before the ledger drops their keys."""
        if not self._working:
            return
        for job_range in ranges:
            for key in self._keys_in(job_range):
                self._working[key] -= 1
                if self._working[key] <= 0:
                    del self._working[key]
                self.lanes.unblock(key)

    def _keys_in(self, job_range: JobRange) -> Iterator[str]:
        keys = self._ledger.keys
        if not (keys and self._ledger.options.by_key):
            return iter(())
        return (keys[job] for job in range(*job_range) if job in keys)

    # -- time -----------------------------------------------------------------

    def unblock_due(self, now_ms: int) -> None:
        """Unblock keys whose rate allows it again; drop buckets that are full."""
        while self._unblocks and self._unblocks[0][0] <= now_ms:
            self.lanes.unblock(heappop(self._unblocks)[1])
        if len(self._key_buckets) > 10_000:
            full = [key for key, bucket in self._key_buckets.items() if bucket.full(now_ms)]
            for key in full:
                del self._key_buckets[key]

    def next_ms(self) -> int | None:
        """When something here is due; most queues have nothing but leases."""
        times = [heap[0][0] for heap in (self._unblocks, self._limits) if heap]
        if (due_ms := self.delays.next_ms()) is not None:
            times.append(due_ms)
        if self._expiries and (due_ms := self._next_expiry()) is not None:
            times.append(due_ms)
        return min(times) if times else None

    def next_delivery_ms(self, now_ms: int) -> int | None:
        """When the rate limit allows the next waiting job; None if it delays none."""
        if self._bucket is None or not self.lanes.ready or self._bucket.available(now_ms) > 0:
            return None
        return self._bucket.next_ms()

    def _set_bucket(self, now_ms: int) -> None:
        rules = self._ledger.options
        limited = rules.rate > 0
        self._bucket = TokenBucket(rules.rate, rules.rate_burst, now_ms) if limited else None
