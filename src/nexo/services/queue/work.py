"""Our own requests of producers and workers: the hot ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nexo.brokers.queue.batches import OPEN
from nexo.brokers.queue.jobs import NewJobs
from nexo.brokers.queue.leases import check_runs
from nexo.brokers.queue.ledger import pairs
from nexo.brokers.queue.options import MAX_WAIT_MS, check_range
from nexo.brokers.queue.status import state_of
from nexo.errors import InvalidInput, LeaseLost, NotFound
from nexo.protocol.ops import Op
from nexo.protocol.queue import (
    ACK,
    NACK,
    REJECT,
    RELEASE,
    JobRequest,
    Pop,
    Progress,
    PushHead,
    PushReply,
    Renew,
    Settle,
    Settled,
    check_block,
    decode,
    encode,
    id_text,
    parse_id,
    split_head,
    unpack_id,
)
from nexo.services.queue.deliveries import delivery_parts
from nexo.services.queue.open_queue import OpenQueue
from nexo.services.queue.waiters import Waiter
from nexo.services.service import Handler, Peer

if TYPE_CHECKING:
    from nexo.services.queue.service import QueueService

WHOLE_LEASE = -1
"""Stands for the job when a whole lease is refused."""


class WorkRequests:
    """Handlers of pushes, pops and settlements."""

    def __init__(self, service: QueueService) -> None:
        self._service = service
        self.handlers: dict[int, Handler] = {
            Op.Q_PUSH_MANY: self._push,
            Op.Q_POP: self._pop,
            Op.Q_SETTLE: self._settle,
            Op.Q_RENEW: self._renew,
            Op.Q_PROGRESS: self._progress,
            Op.Q_JOB: self._job,
        }

    def _push(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        head, rest = split_head(payload)
        asked = decode(head, PushHead)
        queue = self._service.registry.find(asked.queue)
        self._service.runtime.check_writable()
        block = bytes(rest)
        jobs = NewJobs(
            check_block(block), block, asked.priority, asked.delay_ms, asked.ttl_ms, asked.keys,
            asked.dedup_keys, asked.replace,
        )  # fmt: skip
        taken = queue.push(jobs, self._service.now_ms())
        reply = PushReply(queue.engine.ledger.incarnation, taken.base, taken.count, taken.instead)
        turn = self._service.turn
        confirm = turn.confirm if asked.replace else turn.confirm_or_undo
        confirm(queue, peer, request_id, encode(reply))

    def _pop(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        asked = decode(payload, Pop)
        queue = self._service.registry.find(asked.queue)
        self._service.pop(
            queue, peer, request_id, delivery_parts, lambda: peer.null(request_id),
            asked.limit, asked.wait_ms, asked.lease_ms,
        )  # fmt: skip

    # -- settling -------------------------------------------------------------

    def _settle(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        asked = decode(payload, Settle)
        queue = self._service.registry.find(asked.queue)
        _check(asked.leases)
        refused: list[tuple[int, int]] = []
        for settled in asked.leases:
            try:
                lost = self._settle_lease(queue, asked, settled)
            except LeaseLost:
                lost = [WHOLE_LEASE]
            refused += ((settled.token, job) for job in lost)
        parts = (encode(refused),) if refused else ()
        self._service.turn.confirm(queue, peer, request_id, *parts)

    def _settle_lease(self, queue: OpenQueue, asked: Settle, settled: Settled) -> list[int]:
        engine, now_ms = queue.engine, self._service.now_ms()
        runs = None if settled.runs is None else list(pairs(settled.runs))
        match asked.how:
            case how if how == ACK:
                return engine.ack(settled.token, runs, settled.results, now_ms)
            case how if how == RELEASE:
                return engine.release(settled.token, runs, now_ms)
            case how if how in (NACK, REJECT):
                delay_ms = None if asked.delay_ms < 0 else asked.delay_ms
                return engine.nack(
                    settled.token, runs, asked.error, now_ms, self._service.luck,
                    retry=how == NACK, delay_ms=delay_ms,
                )  # fmt: skip
        raise InvalidInput(f"{asked.how} is not a way to settle a job")

    def _renew(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        asked = decode(payload, Renew)
        queue, now_ms = self._service.registry.find(asked.queue), self._service.now_ms()
        lost: list[int] = []
        for token in asked.tokens:
            try:
                queue.engine.renew(token, now_ms, asked.lease_ms)
            except LeaseLost:
                lost.append(token)
        peer.data(request_id, encode(lost))

    def _progress(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        asked = decode(payload, Progress)
        queue = self._service.registry.find(asked.queue)
        queue.engine.report_progress(asked.token, asked.job, asked.value)
        peer.ok(request_id)

    # -- one job --------------------------------------------------------------

    def _job(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        asked = decode(payload, JobRequest)
        check_range("wait_ms", asked.wait_ms, MAX_WAIT_MS)
        queue, now_ms = self._service.registry.find(asked.queue), self._service.now_ms()
        job = job_number(queue, asked.id)

        def answer() -> None:
            peer.data(request_id, encode(self._seen(queue, job)))

        def attempt(_now_ms: int) -> bool:
            if queue.engine.ledger.batches.mark_of(job) == OPEN:
                return False
            answer()
            return True

        if not asked.wait_ms:
            answer()
        elif not attempt(now_ms):
            deadline_ms = now_ms + asked.wait_ms
            self._service.watch(queue, Waiter(peer, request_id, deadline_ms, attempt, answer))

    def _seen(self, queue: OpenQueue, job: int) -> dict[str, object]:
        engine = queue.engine
        failed = engine.ledger.failures.get(job)
        by = engine.ledger.replaced.get(job)
        return {
            "state": state_of(engine, job),
            "failures": failed.count if failed else 0,
            "error": failed.history[-1][1] if failed and failed.history else None,
            "progress": engine.progress.get(job),
            "result": engine.result(job, self._service.now_ms()),
            "replaced_by": None if by is None else id_text(engine.ledger.incarnation, by),
        }


def _check(leases: list[Settled]) -> None:
    """Refuse what makes no sense before any of it is done."""
    for settled in leases:
        if settled.runs is None:
            continue
        if len(settled.runs) % 2:
            raise InvalidInput("runs of jobs are pairs of first and end")
        if len(leases) > 1:  # the engine checks a lone one before it changes anything
            check_runs(pairs(settled.runs))


def job_number(queue: OpenQueue, text: str) -> int:
    """The number of the job with this id; `NotFound` if it never was in this queue."""
    incarnation, job = unpack_id(parse_id(text))
    ledger = queue.engine.ledger
    if incarnation != ledger.incarnation or job >= ledger.next_job:
        raise NotFound(f"Job {text} is not of queue '{queue.name}'")
    return job
