"""One queue: its operations, and the records that each of them writes.

Every change is a record, applied to the ledger at once and collected in ``outbox`` for the
service to write. Nothing here knows clocks, files or connections: time, jitter and holders
are arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress

from msgspec import to_builtins

from nexo.brokers.queue.batches import DEAD, OPEN, JobRange
from nexo.brokers.queue.dispatch import Dispatch
from nexo.brokers.queue.jobs import NewJobs, resolve_dedup, with_free_key
from nexo.brokers.queue.leases import Lease, check_runs
from nexo.brokers.queue.ledger import JobRun, Ledger, WatchedJobs, flatten, forget, without
from nexo.brokers.queue.lifetimes import Lifetimes
from nexo.brokers.queue.records import (
    Changed,
    CronSet,
    Died,
    Failed,
    Finished,
    Pushed,
    QueueCreated,
    QueueRecord,
    Replaced,
    Resulted,
    Revived,
)  # fmt: skip
from nexo.brokers.queue.schedules import following, job_of, next_after
from nexo.errors import Conflict, InvalidInput, LeaseLost, QueueFull
from nexo.model.queue import PushReply
from nexo.options.described import check_range
from nexo.options.queue import (
    MAX_DELAY_MS,
    MAX_POP,
    MAX_PRIORITY,
    MAX_REASON_CHARS,
    QueueOptions,
)  # fmt: skip

Jitter = Callable[[], float]
"""A random number in 0..1, drawn once per jittered delay."""

TOKEN_BITS = 16
"""Lease tokens start at the time of opening times 2**16: a millisecond never grants that many."""
WORKER_LOST = "the connection of its worker ended"
DROP_MS = 1_000
"""Expired results are dropped at most this often; they are never returned."""


class QueueEngine:
    """One queue and everything in it."""

    def __init__(self, ledger: Ledger, now_ms: int) -> None:
        self.ledger = ledger
        self.outbox: list[QueueRecord] = []
        # Tokens of an earlier process, or of a deleted queue of this name, must not match.
        self.dispatch = Dispatch(ledger, now_ms << TOKEN_BITS, now_ms)
        self.progress: dict[int, bytes] = {}
        """The progress that running jobs last reported."""
        self.watched = WatchedJobs()
        self._lifetimes = Lifetimes(ledger.batches, now_ms)
        self._dropped_ms = now_ms

    @classmethod
    def create(cls, rules: QueueOptions, incarnation: int, now_ms: int) -> QueueEngine:
        ledger = Ledger()
        created = QueueCreated(incarnation, now_ms, to_builtins(rules))
        ledger.apply(created)
        queue = cls(ledger, now_ms)
        queue.outbox.append(created)
        return queue

    def recreate(self, now_ms: int) -> None:
        """Continue with default options: the record that created the queue is lost."""
        self._log(QueueCreated(now_ms, now_ms, to_builtins(self.ledger.options)))

    @property
    def options(self) -> QueueOptions:
        return self.ledger.options

    @property
    def waiting(self) -> int:
        return self.ledger.open_jobs - self.dispatch.leases.jobs - self.dispatch.delays.jobs

    def _log(self, record: QueueRecord) -> None:
        self.ledger.apply(record)
        self.outbox.append(record)
        if self.watched.jobs:
            self.watched.note(record)

    # -- push -----------------------------------------------------------------

    def push(self, jobs: NewJobs, now_ms: int) -> PushReply:
        """Add a batch of jobs (SPEC D2)."""
        jobs.check()
        base = self.ledger.next_job
        instead, replaced = resolve_dedup(jobs, base, self.ledger.dedup)
        self._check_room(jobs.count - len(instead), replaced)
        for job, by in replaced.items():
            self._remove_unless_leased(job, Replaced(job, by))
        if len(instead) < jobs.count:
            due_ms = now_ms + jobs.delay_ms if jobs.delay_ms else 0
            expires_ms = now_ms + jobs.ttl_ms if jobs.ttl_ms else 0
            if expires_ms:
                self._lifetimes.any = True
            self._log(Pushed(
                base, jobs.count, now_ms, jobs.block, jobs.priority, due_ms, expires_ms,
                jobs.keys, jobs.dedup_keys, sorted(instead) or None, jobs.owner, jobs.headers,
            ))  # fmt: skip
            if instead or jobs.keys:
                self.dispatch.wait([(base, base + jobs.count)], now_ms)
            else:
                run = JobRun(base, base + jobs.count, jobs.priority, None, due_ms)
                self.dispatch.wait_alike(run, now_ms)
        return PushReply(self.ledger.incarnation, base, jobs.count, instead)

    def withdraw(self, push: Pushed) -> None:
        """Undo a push whose record could not be written, before any of its jobs was delivered.

        Its numbers stay used: later records continue from them.
        """
        self.ledger.withdraw(push)
        for job in range(push.base, push.base + push.count) if push.due_ms else ():
            self.dispatch.delays.discard(job)

    def _check_room(self, count: int, replaced: Iterable[int]) -> None:
        """Raise `QueueFull` if ``count`` jobs have no room once those replaced are gone."""
        limit = self.options.max_jobs
        if not limit or self.ledger.open_jobs + count <= limit:
            return
        freed = sum(not self.dispatch.leases.hold(job) for job in replaced)
        if self.ledger.open_jobs + count - freed <= limit:
            return
        if count > limit:
            raise InvalidInput(
                f"{count} jobs never fit in a queue with max_jobs={limit}: push fewer"
            )
        raise QueueFull(
            f"the queue holds {self.ledger.open_jobs} of max_jobs={limit}, "
            f"too many for {count} more; push later"
        )

    def _remove_unless_leased(self, job: int, record: QueueRecord) -> bool:
        if self.dispatch.leases.hold(job):
            return False
        self.dispatch.delays.discard(job)
        self._log(record)
        return True

    # -- pop and settle -------------------------------------------------------

    def pop(
        self, holder: int, limit: int, now_ms: int, lease_ms: int = 0, reports: bool = False
    ) -> Lease | None:
        """Lease up to ``limit`` jobs, best first; None if none may be delivered now.

        ``reports`` promises that the worker calls `begin` for each handler.
        """
        check_range("batch", limit, MAX_POP, 1)
        check_range("lease_ms", lease_ms, MAX_DELAY_MS)
        if self.ledger.paused:
            return None
        self.dispatch.promote(now_ms)
        runs, expired = self.dispatch.take(limit, now_ms)
        if expired:
            self._log(Finished(flatten(expired)))
        if not runs:
            return None
        lease_ms = lease_ms or self.options.visibility_timeout_ms
        return self.dispatch.grant(holder, runs, lease_ms, now_ms, reports)

    def ack(
        self,
        token: int,
        runs: Iterable[JobRange] | None,
        results: Mapping[int, bytes] | None = None,
        now_ms: int = 0,
    ) -> list[int]:
        """Finish jobs (all of the lease for None); returns those the lease no longer held.

        ``results`` are kept for the jobs finished here, if the queue keeps results.
        """
        held, refused = self._settle(token, runs)
        if held:
            self._log(Finished(flatten(held)))
        if results and self.options.result_ttl_ms:
            expires_ms = now_ms + self.options.result_ttl_ms
            for job, value in results.items():
                if any(lo <= job < hi for lo, hi in held):
                    self._log(Resulted(job, expires_ms, value))
        return refused

    def nack(
        self,
        token: int,
        runs: Iterable[JobRange] | None,
        reason: str,
        now_ms: int,
        jitter: Jitter,
        *,
        retry: bool = True,
        delay_ms: int | None = None,
    ) -> list[int]:
        """Count a failure of each job: retry after the back-off, or dead-letter it (SPEC D5)."""
        check_range("delay_ms", delay_ms or 0, MAX_DELAY_MS)
        held, refused = self._settle(token, runs)
        self._fail(held, "nack" if retry else "rejected", reason, now_ms, jitter, retry, delay_ms)
        return refused

    def release(self, token: int, runs: Iterable[JobRange] | None, now_ms: int) -> list[int]:
        """Return jobs that no handler began: no failure is counted (SPEC D3)."""
        held, refused = self._settle(token, runs)
        self.dispatch.wait(held, now_ms)
        return refused

    def give_back(self, token: int, runs: Iterable[JobRange] | None, now_ms: int) -> list[int]:
        """Return jobs that their worker has seen; no failure is counted."""
        held, refused = self._settle(token, runs)
        self.ledger.returned.update(dict.fromkeys(job for each in held for job in range(*each)))
        self.dispatch.wait(held, now_ms)
        return refused

    def release_holder(self, holder: int, now_ms: int, jitter: Jitter) -> bool:
        """Free the jobs of a consumer that is gone (SPEC D8); returns whether it held any.

        What it had begun counts as a failed attempt, so that a job that kills its workers ends
        among the dead letters; the rest does not (SPEC D5).
        """
        leases = self.dispatch.leases.of_holder(holder)
        for lease in leases:
            counted, held = lease.counted(), self.dispatch.leases.end(lease)
            self._ended(held)
            # Without reports the start is only presumed, and a presumed start alone never makes a
            # dead letter.
            least = 0 if lease.reports else 1
            self._fail(
                counted, "lost", WORKER_LOST, now_ms, jitter, delay_ms=0, least_retries=least
            )
            self.dispatch.wait(without(held, counted), now_ms)
        return bool(leases)

    def begin(self, token: int, runs: Iterable[JobRange], now_ms: int) -> None:
        """Record that the handlers of these jobs have begun; does nothing if the lease was lost."""
        checked, lease = check_runs(runs), self.dispatch.leases.get(token)
        if lease is not None:
            self.dispatch.begin(lease, checked, now_ms)

    def renew(self, token: int, now_ms: int, lease_ms: int = 0) -> int:
        """Extend a lease from now; returns when it ends.

        Where the queue has a time limit, a worker that does not report starts can hold n jobs for n
        times that limit at most.
        """
        check_range("lease_ms", lease_ms, MAX_DELAY_MS)
        lease, limit_ms = self.dispatch.leases.held(token), self.options.time_limit_ms
        until_ms = now_ms + (lease_ms or lease.lease_ms)
        if limit_ms and not lease.reports:
            until_ms = min(until_ms, lease.granted_ms + limit_ms * lease.granted)
        lease.expires_ms = max(lease.expires_ms, until_ms)
        return lease.expires_ms

    def _settle(
        self, token: int, runs: Iterable[JobRange] | None
    ) -> tuple[list[JobRange], list[int]]:
        lease = self.dispatch.leases.held(token)
        if runs is None:
            held, refused = self.dispatch.leases.end(lease), list[int]()
        else:
            held, refused = self.dispatch.leases.settle(lease, check_runs(runs))
        self._ended(held)
        return held, refused

    def _ended(self, held: list[JobRange]) -> None:
        self.dispatch.ended(held)
        for lo, hi in held if self.progress else ():
            forget(self.progress, lo, hi)

    def _fail(
        self,
        held: list[JobRange],
        cause: str,
        reason: str,
        now_ms: int,
        jitter: Jitter,
        retry: bool = True,
        delay_ms: int | None = None,
        least_retries: int = 0,
    ) -> None:
        most = max(self.options.max_retries, least_retries)
        again: list[int] = []
        dues: list[int] = []
        dead: list[int] = []
        for job in (job for job_range in held for job in range(*job_range)):
            failures = self.ledger.attempt(job)
            if not retry or failures > most:
                dead.append(job)
                continue
            wait_ms = (
                self.options.retry_wait_ms(failures, jitter()) if delay_ms is None else delay_ms
            )
            again.append(job)
            dues.append(now_ms + wait_ms)
        reason = reason[:MAX_REASON_CHARS]
        if dead:
            self._log(Died(dead, now_ms, cause, reason))
        if again:
            self._log(Failed(again, dues, now_ms, reason))
            self.dispatch.wait(held, now_ms)

    # -- results and progress -------------------------------------------------

    def result(self, job: int, now_ms: int) -> bytes | None:
        return self.ledger.results.get(job, now_ms)

    def report_progress(self, token: int, job: int, value: bytes) -> None:
        if not self.dispatch.leases.held(token).holds(job):
            raise LeaseLost("the job is not held by this lease")
        self.progress[job] = value

    # -- the queue as a whole -------------------------------------------------

    def update(self, rules: QueueOptions, now_ms: int) -> None:
        """Change options at once; waiting jobs follow them too."""
        if rules != self.options:
            self._log(Changed(to_builtins(rules), self.ledger.paused))
            self.dispatch.options_changed(now_ms)

    def pause(self, paused: bool) -> None:
        """Stop or resume deliveries; leased jobs are not affected."""
        if paused != self.ledger.paused:
            self._log(Changed(to_builtins(self.options), paused))

    def purge(self) -> int:
        """Remove every job that waits or is delayed; returns how many."""
        before = self.ledger.open_jobs
        runs = self.dispatch.clear_waiting()
        if runs:
            self._log(Finished(flatten(runs)))
        return before - self.ledger.open_jobs

    def cancel(self, job: int) -> bool:
        """Remove a job that has not started; returns whether there was one."""
        removed = Finished([job, job + 1])
        return self.ledger.batches.mark_of(job) == OPEN and self._remove_unless_leased(job, removed)

    # -- dead letters ---------------------------------------------------------

    def replay(self, jobs: list[int], now_ms: int) -> int:
        """Let dead letters run again from the start (SPEC D6); returns how many do.

        One whose dedup key another job has taken stays dead; `Conflict` if that holds for all.
        """
        found = [job for job in dict.fromkeys(jobs) if job in self.ledger.dead]
        free = with_free_key(found, self.ledger.dedup_keys, self.ledger.dedup)
        if found and not free:
            key = self.ledger.dedup_keys[found[0]]
            raise Conflict(f"another job with dedup_key {key!r} waits or runs: replay it later")
        if free:
            self._log(Revived(free))
            self.dispatch.wait(((job, job + 1) for job in sorted(free)), now_ms)
        return len(free)

    def delete_dead(self, jobs: list[int]) -> int:
        """Delete dead letters; returns how many there were."""
        found = sorted(job for job in set(jobs) if self.ledger.batches.mark_of(job) == DEAD)
        if found:
            self._log(Finished(flatten((job, job + 1) for job in found)))
        return len(found)

    # -- schedules ------------------------------------------------------------

    def set_cron(
        self, name: str, text: str, block: bytes, now_ms: int, priority: int = 0,
        key: str | None = None, zone: str = "",
    ) -> int:  # fmt: skip
        """Push ``block`` (one job) whenever the expression matches; returns the next time."""
        check_range("priority", priority, MAX_PRIORITY)
        cron = CronSet(name, text, block, priority, key, next_after(text, now_ms, zone), zone)
        self._log(cron)
        return cron.next_ms

    def drop_cron(self, name: str) -> None:
        """Remove a schedule; `NotFound` if there is none of that name."""
        self._log(self.ledger.schedules.removal(name))

    def _fire(self, cron: CronSet, now_ms: int) -> None:
        self._log(following(cron, now_ms))
        with suppress(QueueFull):  # a full queue skips the run, as it rejects any push
            self.push(job_of(cron), now_ms)

    # -- time -----------------------------------------------------------------

    def tick(self, now_ms: int, jitter: Jitter) -> None:
        """Do what is due: delays, leases, schedules, lifetimes, results."""
        self.dispatch.promote(now_ms)
        for lease in self.dispatch.expired_leases(now_ms):
            counted, held = lease.counted(), self.dispatch.leases.end(lease)
            self._ended(held)
            failed = counted if lease.reports else held
            self._fail(failed, "timeout", f"no ack within {lease.lease_ms} ms", now_ms, jitter)
            self.dispatch.wait(without(held, failed), now_ms)
        for lease, job in self.dispatch.overdue(now_ms):
            self._take_overdue(lease, job, now_ms, jitter)
        for cron in self.ledger.schedules.due(now_ms):
            self._fire(cron, now_ms)
        self.dispatch.unblock_due(now_ms)
        if self._lifetimes.any and self._lifetimes.next_ms(now_ms) <= now_ms:
            self._sweep(now_ms)
        self.ledger.results.drop_expired(now_ms)
        self._dropped_ms = now_ms

    def _take_overdue(self, lease: Lease, job: int, now_ms: int, jitter: Jitter) -> None:
        """Take a job from a handler that has run too long.

        If nothing else that the worker has begun is left, all its handlers hang: jobs it has
        fetched and not begun are returned too.
        """
        held, _ = self._settle(lease.token, [(job, job + 1)])
        reason = f"the handler ran longer than {self.options.time_limit_ms} ms"
        self._fail(held, "timeout", reason, now_ms, jitter)
        if lease.count and not lease.counted():
            self.release(lease.token, None, now_ms)

    def _sweep(self, now_ms: int) -> None:
        expired = self._lifetimes.expired(sorted(self.dispatch.lanes), now_ms)
        if expired:
            self._log(Finished(flatten(expired)))
        self._lifetimes.swept(now_ms)

    def next_ms(self, now_ms: int) -> int | None:
        """When `tick` has something to do."""
        ledger, due_ms = self.ledger, self.dispatch.next_ms()
        times = [] if due_ms is None else [due_ms]
        if ledger.schedules.by_name:
            times.append(ledger.schedules.next_ms())
        if self._lifetimes.any:
            times.append(self._lifetimes.next_ms(now_ms))
        if ledger.results.by_job:
            times.append(max(ledger.results.next_ms(), self._dropped_ms + DROP_MS))
        return min(times, default=None)
