"""The queue engine against a model with one plain object per job."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from nexo.brokers.queue.engine import QueueEngine
from nexo.brokers.queue.jobs import NewJobs
from nexo.brokers.queue.ledger import Ledger
from nexo.brokers.queue.places import Places
from nexo.brokers.queue.records import decode_record, encode_record
from nexo.brokers.queue.snapshot import restore, snapshot
from nexo.errors import LeaseLost
from nexo.options.queue import Backoff, QueueOptions

MAX_RETRIES, LEASE_MS, BACKOFF_MS = 2, 50, 30
RULES = QueueOptions(
    max_retries=MAX_RETRIES,
    visibility_timeout_ms=LEASE_MS,
    backoff=Backoff.FIXED,
    backoff_delay_ms=BACKOFF_MS,
)


@dataclass
class Job:
    number: int
    priority: int
    due_ms: int
    expires_ms: int
    failures: int = 0
    token: int = 0
    lease_ends_ms: int = 0
    state: str = "open"


class QueueMachine(RuleBasedStateMachine):
    """Every rule does the same to the engine and to the model."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1_000
        self.queue = QueueEngine.create(RULES, 1, self.now)
        self.jobs: list[Job] = []
        self.log: list[bytes] = []
        self.image = b""

    # -- the model ------------------------------------------------------------

    def ready(self) -> list[Job]:
        free = [
            job
            for job in self.jobs
            if job.state == "open" and not job.token and job.due_ms <= self.now
        ]
        for job in free:
            if 0 < job.expires_ms <= self.now:
                job.state = "done"
        alive = [job for job in free if job.state == "open"]
        return sorted(alive, key=lambda job: (-job.priority, job.number))

    def fail(self, job: Job) -> None:
        job.token = 0
        job.failures += 1
        job.due_ms = self.now + BACKOFF_MS
        if job.failures > MAX_RETRIES:
            job.state = "dead"

    def leased(self, token: int) -> list[Job]:
        return [job for job in self.jobs if job.token == token]

    def tokens(self) -> list[int]:
        return sorted({job.token for job in self.jobs if job.token})

    # -- the rules ------------------------------------------------------------

    @rule(
        count=st.integers(1, 5),
        priority=st.sampled_from([0, 0, 7, 255]),
        delay=st.sampled_from([0, 0, 20]),
        ttl=st.sampled_from([0, 0, 60]),
    )
    def push(self, count: int, priority: int, delay: int, ttl: int) -> None:
        base = self.queue.push(NewJobs(count, b"", priority, delay, ttl), self.now).base
        assert base == len(self.jobs)
        self.jobs += [
            Job(base + i, priority, self.now + delay, self.now + ttl if ttl else 0)
            for i in range(count)
        ]

    @rule(limit=st.integers(1, 6), holder=st.integers(1, 2))
    def pop(self, limit: int, holder: int) -> None:
        expected = self.ready()[:limit]
        lease = self.queue.pop(holder, limit, self.now)
        got = [] if lease is None else [n for lo, hi in lease.runs for n in range(lo, hi)]
        assert got == [job.number for job in expected]
        for job in expected:
            assert lease is not None
            assert self.queue.ledger.attempt(job.number) == job.failures + 1
            job.token, job.lease_ends_ms = lease.token, self.now + LEASE_MS

    @rule(data=st.data(), how=st.sampled_from(["ack", "nack", "release"]))
    def settle(self, data: st.DataObject, how: str) -> None:
        if not self.tokens():
            return
        token = data.draw(st.sampled_from(self.tokens()))
        held = self.leased(token)
        chosen = data.draw(st.lists(st.sampled_from(held), min_size=1, unique_by=id))
        runs = [(job.number, job.number + 1) for job in chosen]
        match how:
            case "ack":
                assert self.queue.ack(token, runs) == []
            case "nack":
                assert self.queue.nack(token, runs, "no", self.now, lambda: 0.0) == []
            case _:
                assert self.queue.release(token, runs, self.now) == []
        for job in chosen:
            job.token = 0
            if how == "ack":
                job.state = "done"
            elif how == "nack":
                self.fail(job)

    @rule(token=st.integers(100, 200))
    def settle_with_a_foreign_token(self, token: int) -> None:
        if token not in self.tokens() and self.queue.dispatch.leases.get(token) is None:
            try:
                self.queue.ack(token, None)
            except LeaseLost:
                return
            raise AssertionError("a lease that never was is refused")

    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        if not self.jobs:
            return
        self.ready()
        job = data.draw(st.sampled_from(self.jobs))
        idle = job.state == "open" and not job.token
        done = self.queue.cancel(job.number)
        assert done == idle or (done and 0 < job.expires_ms <= self.now)
        if idle:
            job.state = "done"

    @rule(data=st.data())
    def replay(self, data: st.DataObject) -> None:
        dead = [job for job in self.jobs if job.state == "dead"]
        if dead:
            job = data.draw(st.sampled_from(dead))
            assert self.queue.replay([job.number], self.now) == 1
            job.state, job.failures, job.due_ms = "open", 0, 0

    @rule(step=st.integers(1, 80))
    def pass_time(self, step: int) -> None:
        self.now += step
        self.queue.tick(self.now, lambda: 0.0)
        for job in self.jobs:
            if job.token and job.lease_ends_ms <= self.now:
                self.fail(job)

    @rule(checkpoint=st.booleans())
    def crash(self, checkpoint: bool) -> None:
        """Write, forget, read back: leases end, everything else is there."""
        self.log += map(encode_record, self.queue.outbox)
        ledger = restore(self.image)[0] if self.image else Ledger()
        for record in self.log:
            ledger.apply(decode_record(record))
        if checkpoint:
            self.image, self.log = snapshot(ledger, Places()), []
        self.queue = QueueEngine(ledger, self.now)
        for job in self.jobs:
            job.token = 0

    @invariant()
    def the_counts_add_up(self) -> None:
        ledger = self.queue.ledger
        leased = sum(1 for job in self.jobs if job.token)
        assert self.queue.dispatch.leases.jobs == leased
        assert list(ledger.dead) == [] or sorted(ledger.dead) == [
            job.number for job in self.jobs if job.state == "dead"
        ]
        assert self.queue.waiting >= 0


QueueMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
test_the_queue_behaves_as_the_model = QueueMachine.TestCase
