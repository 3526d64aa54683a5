"""Jobs in replies: leased with their values, or listed one by one."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable, Mapping
from typing import TypeVar

import msgspec

from nexo.brokers.queue.engine import Jitter
from nexo.brokers.queue.leases import Lease
from nexo.errors import Corrupt
from nexo.model.blocks import id_text, values_of
from nexo.services.queue.open_queue import OpenQueue
from nexo.services.queue.values import JobSlice

log = logging.getLogger("nexo.queue")

V = TypeVar("V")

MAX_DELIVERY_BYTES = 8 * 1024 * 1024
"""A pop ends early when its values reach this."""
MAX_PAGE_BYTES = 4 * 1024 * 1024
"""A page of listed jobs ends early when its values reach this."""
DAMAGED = b"\x02null"
"""Stands for a value that cannot be read: null, as JSON."""


# -- deliveries -------------------------------------------------------------------


class LeasedJobs(msgspec.Struct, frozen=True):
    """The jobs of one pop: cut from blocks, without touching single ones."""

    incarnation: int
    lease: Lease
    slices: list[JobSlice]
    priorities: list[int]
    """One per slice."""
    attempts: dict[int, int]
    """The attempt number of jobs that were delivered before."""
    keys: dict[int, str]
    keeps_results: bool
    max_retries: int
    headers: dict[int, bytes]
    returned: list[int]
    """The jobs that a worker has seen and given back."""

    def values(self) -> list[bytes]:
        """The value of each job, with its type byte."""
        return [value for some in self.slices for value in values_of(some.ends, some.content)]


def gather(queue: OpenQueue, lease: Lease, now_ms: int, jitter: Jitter) -> LeasedJobs | None:
    """A lease's jobs with their values, up to `MAX_DELIVERY_BYTES`; the rest is released.

    Jobs whose values are damaged become dead letters, so that they block nobody (SPEC E6).
    """
    found: list[JobSlice] = []
    size, left = 0, deque(lease.runs)
    while left and size < MAX_DELIVERY_BYTES:
        lo, hi = left.popleft()
        try:
            found.append(queue.values.slice_at(lo, hi))
        except Corrupt as error:
            end = _set_aside(queue, lease, lo, hi, error, now_ms, jitter)
        else:
            size += len(found[-1].content)
            end = lo + found[-1].jobs
        if end < hi:
            left.appendleft((end, hi))
    if left:
        queue.engine.release(lease.token, left, now_ms)
    return _delivered(queue, lease, found) if found else None


def _set_aside(
    queue: OpenQueue, lease: Lease, lo: int, hi: int, error: Corrupt, now_ms: int, jitter: Jitter
) -> int:
    """Dead-letter the jobs of a damaged entry; returns the first job after them."""
    log.error("queue %s: %s; its jobs are dead letters now", queue.name, error)
    end = min(hi, queue.values.places.end_of(lo) or hi)
    queue.engine.nack(lease.token, [(lo, end)], f"damaged: {error}", now_ms, jitter, retry=False)
    return end


def _delivered(queue: OpenQueue, lease: Lease, found: list[JobSlice]) -> LeasedJobs:
    ledger, rules = queue.engine.ledger, queue.engine.options
    attempts = {job: failed.count + 1 for job, failed in _among(ledger.failures, lease).items()}
    priorities = [ledger.priority(some.first) for some in found]
    return LeasedJobs(
        ledger.incarnation, lease, found, priorities, attempts, _among(ledger.keys, lease),
        rules.result_ttl_ms > 0, rules.max_retries, _headers(found),
        list(_among(ledger.returned, lease)),
    )  # fmt: skip


def _headers(found: list[JobSlice]) -> dict[int, bytes]:
    headers: dict[int, bytes] = {}
    for some in found:
        if some.headers is not None:
            numbered = enumerate(some.headers, some.first)
            headers.update((job, each) for job, each in numbered if each is not None)
    return headers


def _among(mapping: Mapping[int, V], lease: Lease) -> dict[int, V]:
    """The items of a mapping for a lease's jobs, at the cost of the smaller side."""
    if not mapping:
        return {}
    if lease.count < len(mapping):
        jobs = (job for lo, hi in lease.runs for job in range(lo, hi))
        return {job: mapping[job] for job in jobs if job in mapping}
    return {job: noted for job, noted in mapping.items() if lease.holds(job)}


# -- lists ------------------------------------------------------------------------


class OpenJob(msgspec.Struct, frozen=True, kw_only=True):
    """One job that is not done."""

    id: str
    value: bytes
    """With its type byte; `DAMAGED` if it cannot be read, as the job's error says."""
    priority: int
    key: str | None
    pushed_ms: int
    due_ms: int
    attempts: int
    history: list[tuple[int, str]]
    headers: bytes | None
    """As the producer wrote them."""


class DeadView(OpenJob, frozen=True, kw_only=True):
    """A dead letter."""

    cause: str
    """``nack``, ``rejected``, ``timeout`` or ``lost``."""
    died_ms: int
    reason: str
    """Why it failed the last time."""


class WorkingView(OpenJob, frozen=True, kw_only=True):
    """A leased job."""

    holder: int
    """The number of a connection."""
    lease_ms: int
    expires_ms: int


def job_views(queue: OpenQueue, jobs: Iterable[int]) -> list[OpenJob]:
    """Jobs for a list, up to `MAX_PAGE_BYTES`."""
    found: list[OpenJob] = []
    left = MAX_PAGE_BYTES
    for job in jobs:
        found.append(_view(queue, job))
        left -= len(found[-1].value)
        if left <= 0:
            break
    return found


def working_views(queue: OpenQueue, leased: list[tuple[int, Lease]]) -> list[OpenJob]:
    """Jobs with their holders."""
    rows = job_views(queue, (job for job, _ in leased))
    return [
        WorkingView(
            **msgspec.structs.asdict(row), holder=lease.holder, lease_ms=lease.lease_ms,
            expires_ms=lease.expires_ms,
        )
        for row, (_, lease) in zip(rows, leased, strict=False)
    ]  # fmt: skip


def _view(queue: OpenQueue, job: int) -> OpenJob:
    ledger = queue.engine.ledger
    value, pushed_ms, headers = _value(queue, job)
    failed, letter = ledger.failures.get(job), ledger.dead.get(job)
    batch, history = ledger.batches.of(job), failed.history if failed else []
    view = OpenJob(
        id=id_text(ledger.incarnation, job),
        value=value,
        priority=ledger.priority(job),
        key=ledger.keys.get(job),
        pushed_ms=pushed_ms,
        due_ms=failed.due_ms if failed else batch.due_ms if batch else 0,
        attempts=failed.count if failed else 0,
        history=history,
        headers=headers,
    )
    if letter is None:
        return view
    return DeadView(
        **msgspec.structs.asdict(view), cause=letter.cause, died_ms=letter.died_ms,
        reason=history[-1][1] if history else "",
    )  # fmt: skip


def _value(queue: OpenQueue, job: int) -> tuple[bytes, int, bytes | None]:
    try:
        return queue.values.one(job)
    except Corrupt:
        return DAMAGED, queue.values.places.find(job).pushed_ms, None
