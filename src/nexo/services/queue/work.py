"""Use cases of producers and workers: push, pop, settle, renew, watch a job (the hot path)."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from nexo import limits
from nexo.access.permit import ANY, READ, WRITE, permit
from nexo.brokers.queue.batches import OPEN, JobRange
from nexo.brokers.queue.jobs import NewJobs
from nexo.brokers.queue.leases import Lease, check_runs
from nexo.brokers.queue.status import job_state
from nexo.errors import LeaseLost, NexoError, NotFound, ShuttingDown
from nexo.model import Broker
from nexo.model.blocks import parse_id, unpack_id
from nexo.model.queue import ACK, NACK, RELEASE, RETURN, JobOutcome, JobState, PushReply
from nexo.options.described import check_range
from nexo.services.connection import Connection, Done
from nexo.services.queue.core import QueueCore
from nexo.services.queue.gathering import PushKind, WorkGathering
from nexo.services.queue.open_queue import OpenQueue
from nexo.services.queue.registry import missing
from nexo.services.queue.views import LeasedJobs, gather
from nexo.services.service import Runtime
from nexo.services.waiting import Wait

WHOLE_LEASE = -1
"""Stands for every job when a whole lease is rejected."""


class JobSettlement(msgspec.Struct, frozen=True):
    """How a worker settles jobs of one lease."""

    token: int
    runs: list[JobRange] | None = None
    """None for all that the lease still holds."""
    results: dict[int, bytes] | None = None


class QueueWork(QueueCore):
    """Pushes, pops and settlements."""

    def __init__(self, runtime: Runtime) -> None:
        super().__init__(runtime)
        self.gathering = WorkGathering(runtime.soon, self._push_gathered, self._ack_gathered)

    def push(self, connection: Connection, name: str, jobs: NewJobs, done: Done[PushReply]) -> None:
        """Add jobs; answered once they are as durable as the queue promises (SPEC D2, D7)."""
        permit(connection.identity, Broker.QUEUE, WRITE, name)
        queue = self.find_or_create(name)
        self.runtime.check_writable()
        if connection.identity is not None:
            jobs = msgspec.structs.replace(jobs, owner=connection.identity.user.name)
        taken = queue.push(jobs, self.now_ms())
        self.confirm(queue, done, taken, or_undo=not jobs.replace)

    def push_one(
        self, connection: Connection, name: str, value: bytes, kind: PushKind, done: Done[None]
    ) -> None:
        """Add one plain job, together with others of this turn."""
        if connection.identity is not None:
            permit(connection.identity, Broker.QUEUE, WRITE, name)
            kind = kind._replace(owner=connection.identity.user.name)
        self.gathering.push(self.find_or_create(name), kind, value, done)

    def _push_gathered(self, queue: OpenQueue, jobs: NewJobs, done: Done[PushReply]) -> None:
        self._check_there(queue)
        self.runtime.check_writable()
        self.confirm(queue, done, queue.push(jobs, self.now_ms()), or_undo=True)

    def _ack_gathered(
        self, queue: OpenQueue, token: int, runs: list[JobRange], done: Done[list[int]]
    ) -> None:
        self._check_there(queue)
        self.confirm(queue, done, queue.engine.ack(token, runs, None, self.now_ms()))

    def _check_there(self, queue: OpenQueue) -> None:
        if self.registry.get(queue.name) is not queue:
            raise missing(queue.name)

    def pop(
        self,
        connection: Connection,
        ticket: int,
        name: str,
        limit: int,
        wait_ms: int,
        done: Done[LeasedJobs | None],
        lease_ms: int = 0,
        reports: bool = False,
    ) -> None:
        """Lease up to ``limit`` jobs, now or when some arrive; None if there are none.

        A worker that ``reports`` calls `begin` before each handler runs.
        """
        permit(connection.identity, Broker.QUEUE, READ, name)
        check_range("wait_ms", wait_ms, limits.QUEUE_WAIT_MS)
        if self.winding_down:
            raise ShuttingDown("the server is stopping: it leases no more jobs")
        queue, holder = self.find_or_create(name), connection.id

        def attempt() -> LeasedJobs | None:
            self.runtime.check_leads()
            now_ms = self.now_ms()
            while lease := queue.engine.pop(holder, limit, now_ms, lease_ms, reports):
                if (found := gather(queue, lease, now_ms, self.jitter)) is not None:
                    return found
            return None

        self.runtime.check_leads()
        now_ms = self.now_ms()
        self.used(queue, holder)
        # otherwise the end of the turn decides what may be delivered
        if queue.write_pushes(now_ms):
            found = attempt()
            if found is not None or not wait_ms:
                done(found)
                if queue.engine.outbox:
                    self.turn.touch(queue)
                else:  # nothing to write: only the lease has an end
                    self.plan_wake(queue, now_ms)
                return
        self._wait(Wait(connection, ticket, (queue,), now_ms + wait_ms, attempt, done))
        self.turn.touch(queue)

    def _wait(self, wait: Wait) -> None:
        self.room.add(wait)
        self.runtime.wake_at(wait.due_ms)

    # -- settling -----------------------------------------------------------------

    def settle(
        self,
        connection: Connection,
        name: str,
        outcome: JobOutcome,
        settlements: Sequence[JobSettlement],
        done: Done[list[tuple[int, int]]],
        error: str = "",
        delay_ms: int | None = None,
    ) -> None:
        """Ack, nack, reject or release jobs of leases.

        Answers the ``(token, job)`` pairs rejected because the lease was lost; job `WHOLE_LEASE`
        stands for a whole lease. ``delay_ms`` replaces the queue's back-off.
        """
        permit(connection.identity, Broker.QUEUE, READ, name)
        self.runtime.check_leads()
        queue = self.registry.find(name)
        if len(settlements) > 1:  # the engine checks a single one before it changes anything
            for each in settlements:
                check_runs(each.runs or ())
        refused: list[tuple[int, int]] = []
        for each in settlements:
            try:
                lost = self._settle(queue, outcome, each, error, delay_ms)
            except LeaseLost:
                lost = [WHOLE_LEASE]
            if lost:
                refused += ((each.token, job) for job in lost)
        self.confirm(queue, done, refused)

    def settle_held(
        self, connection: Connection, name: str, raw_id: bytes, outcome: JobOutcome,
        done: Done[None], error: str = "",
    ) -> None:  # fmt: skip
        """Settle one job that this connection holds: here the connection fences.

        For protocols without lease tokens. `LeaseLost` if the connection does not hold it.
        """
        permit(connection.identity, Broker.QUEUE, READ, name)
        self.runtime.check_leads()
        queue = self.registry.find(name)
        lease, job = _held(queue, connection, raw_id)
        if outcome is ACK:
            self.gathering.ack(queue, lease, job, done)
            return
        self.gathering.flush()
        lease, job = _held(queue, connection, raw_id)
        self._settle(queue, outcome, JobSettlement(lease.token, [(job, job + 1)]), error, None)
        self.confirm(queue, done, None)

    def _settle(
        self, queue: OpenQueue, outcome: JobOutcome, each: JobSettlement, error: str,
        delay_ms: int | None,
    ) -> list[int]:  # fmt: skip
        engine, now_ms = queue.engine, self.now_ms()
        if outcome is ACK:
            return engine.ack(each.token, each.runs, each.results, now_ms)
        if outcome is RELEASE:
            return engine.release(each.token, each.runs, now_ms)
        if outcome is RETURN:
            return engine.give_back(each.token, each.runs, now_ms)
        return engine.nack(
            each.token, each.runs, error, now_ms, self.jitter,
            retry=outcome is NACK, delay_ms=delay_ms,
        )  # fmt: skip

    def renew(
        self, connection: Connection, name: str, tokens: Sequence[int], lease_ms: int = 0
    ) -> list[int]:
        """Extend leases from now; returns the tokens of those that were lost."""
        permit(connection.identity, Broker.QUEUE, READ, name)
        self.runtime.check_leads()
        queue, now_ms = self.registry.find(name), self.now_ms()
        lost: list[int] = []
        for token in tokens:
            try:
                queue.engine.renew(token, now_ms, lease_ms)
            except LeaseLost:
                lost.append(token)
        return lost

    def begin(
        self, connection: Connection, name: str, begun: Sequence[tuple[int, list[JobRange]]]
    ) -> None:
        """Handlers of some jobs begin: ``(token, runs)``. From now on the delivery counts."""
        permit(connection.identity, Broker.QUEUE, READ, name)
        queue, now_ms = self.registry.find(name), self.now_ms()
        for token, runs in begun:
            queue.engine.begin(token, runs, now_ms)
        if queue.engine.options.time_limit_ms:
            self.turn.touch(queue)

    def progress(
        self, connection: Connection, name: str, token: int, job: int, value: bytes
    ) -> None:
        permit(connection.identity, Broker.QUEUE, READ, name)
        self.registry.find(name).engine.report_progress(token, job, value)

    # -- one job ------------------------------------------------------------------

    def job(
        self, connection: Connection, ticket: int, name: str, job_id: str, wait_ms: int,
        done: Done[JobState],
    ) -> None:  # fmt: skip
        """The state of a job; with ``wait_ms``, once it has ended or the time is up."""
        permit(connection.identity, Broker.QUEUE, ANY, name)
        check_range("wait_ms", wait_ms, limits.QUEUE_WAIT_MS)
        queue, now_ms = self.registry.find(name), self.now_ms()
        job = job_number(queue, job_id)
        engine, channel = queue.engine, (queue, job)

        def attempt() -> JobState | None:
            ended = engine.ledger.batches.mark_of(job) != OPEN
            return job_state(engine, job, self.now_ms()) if ended else None

        def answer(found: JobState | NexoError | None) -> None:
            if not self.room.waiting_on(channel):
                engine.watched.jobs.discard(job)
            done(job_state(engine, job, self.now_ms()) if found is None else found)

        if not wait_ms or attempt() is not None:
            answer(None)
            return
        engine.watched.jobs.add(job)
        self._wait(Wait(connection, ticket, (channel,), now_ms + wait_ms, attempt, answer))


def _held(queue: OpenQueue, connection: Connection, raw_id: bytes) -> tuple[Lease, int]:
    incarnation, job = unpack_id(raw_id)
    lease = queue.engine.dispatch.leases.find(connection.id, job)
    if lease is None or incarnation != queue.engine.ledger.incarnation:
        raise LeaseLost("the job is not held by this connection")
    return lease, job


def job_number(queue: OpenQueue, text: str) -> int:
    """The number of the job with this id; `NotFound` if it was never in this queue."""
    incarnation, job = unpack_id(parse_id(text))
    ledger = queue.engine.ledger
    if incarnation != ledger.incarnation or job >= ledger.next_job:
        raise NotFound(f"Job {text} is not in queue '{queue.name}'")
    return job
