"""Leased and listed jobs as bytes for the wire."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from nexo.brokers.queue.engine import Luck
from nexo.brokers.queue.leases import Lease
from nexo.errors import Corrupt
from nexo.protocol.frames import Buffer, pack_u32
from nexo.protocol.queue import Delivery, Piece, encode_head, id_text, pack_id, values_of
from nexo.protocol.values import encode_value
from nexo.services.queue.open_queue import OpenQueue
from nexo.services.queue.values import Slice

log = logging.getLogger("nexo.queue")

V = TypeVar("V")

MAX_DELIVERY_BYTES = 8 * 1024 * 1024
"""A pop ends early when its values reach this."""
MAX_PAGE_BYTES = 4 * 1024 * 1024
"""A page of listed jobs ends early when its values reach this."""


def gather(queue: OpenQueue, lease: Lease, now_ms: int, luck: Luck) -> list[Slice]:
    """The values of a lease's jobs, up to `MAX_DELIVERY_BYTES`; what is beyond goes back.

    Jobs whose values are damaged become dead letters, so that they hold up nobody (SPEC E6).
    """
    found: list[Slice] = []
    size, left = 0, deque(lease.runs)
    while left and size < MAX_DELIVERY_BYTES:
        lo, hi = left.popleft()
        try:
            found.append(queue.values.slice_at(lo, hi))
        except Corrupt as error:
            end = _set_aside(queue, lease, lo, hi, error, now_ms, luck)
        else:
            size += len(found[-1].content)
            end = lo + found[-1].jobs
        if end < hi:
            left.appendleft((end, hi))
    if left:
        queue.engine.release(lease.token, left, now_ms)
    return found


def _set_aside(
    queue: OpenQueue, lease: Lease, lo: int, hi: int, error: Corrupt, now_ms: int, luck: Luck
) -> int:
    """Let the jobs of a damaged entry die; returns the first job behind them."""
    log.error("queue %s: %s; its jobs are dead letters now", queue.name, error)
    end = min(hi, queue.values.places.end_of(lo) or hi)
    queue.engine.nack(lease.token, [(lo, end)], f"damaged: {error}", now_ms, luck, retry=False)
    return end


def delivery_parts(queue: OpenQueue, lease: Lease, found: list[Slice]) -> list[Buffer]:
    """The reply to our own pop: cut from blocks, without looking at single jobs."""
    ledger, rules = queue.engine.ledger, queue.engine.options
    pieces: list[Piece] = []
    parts: list[Buffer] = []
    for some in found:
        batch = ledger.batches.of(some.first)
        priority = batch.priority if batch else 0
        pieces.append(Piece(some.first, some.jobs, priority, some.pushed_ms))
        parts += (some.ends, some.content)
    attempts = {job: failed.count + 1 for job, failed in _among(ledger.failures, lease).items()}
    head = Delivery(
        ledger.incarnation, lease.token, lease.lease_ms, pieces, attempts,
        _among(ledger.keys, lease), rules.result_ttl_ms > 0, rules.max_retries,
    )  # fmt: skip
    return [encode_head(head), *parts]


def _among(mapping: Mapping[int, V], lease: Lease) -> dict[int, V]:
    """What is noted of a lease's jobs, at the cost of the smaller side."""
    if not mapping:
        return {}
    if lease.count < len(mapping):
        jobs = (job for lo, hi in lease.runs for job in range(lo, hi))
        return {job: mapping[job] for job in jobs if job in mapping}
    return {job: noted for job, noted in mapping.items() if lease.holds(job)}


def classic_parts(queue: OpenQueue, lease: Lease, found: list[Slice]) -> list[Buffer]:
    """The reply to Q_CONSUME: ``count u32, {id 16 bytes, length u32, value}*``."""
    incarnation = queue.engine.ledger.incarnation
    parts: list[Buffer] = [pack_u32(sum(some.jobs for some in found))]
    for some in found:
        for job, value in enumerate(values_of(some.ends, some.content), some.first):
            parts += (pack_id(incarnation, job), pack_u32(len(value)), value)
    return parts


def described(queue: OpenQueue, jobs: Iterable[int]) -> list[dict[str, Any]]:
    """Jobs for a list: with values, attempts and times."""
    found: list[dict[str, Any]] = []
    left = MAX_PAGE_BYTES
    for job in jobs:
        found.append(describe(queue, job))
        left -= len(found[-1]["value"])
        if left <= 0:
            break
    return found


def describe(queue: OpenQueue, job: int) -> dict[str, Any]:
    """One job that is not done."""
    ledger = queue.engine.ledger
    value, pushed_ms = _value(queue, job)
    failed, letter = ledger.failures.get(job), ledger.dead.get(job)
    batch, history = ledger.batches.of(job), failed.history if failed else []
    shown: dict[str, Any] = {
        "id": id_text(ledger.incarnation, job),
        "value": value,
        "priority": batch.priority if batch else 0,
        "key": ledger.keys.get(job),
        "pushed_ms": pushed_ms,
        "due_ms": failed.due_ms if failed else batch.due_ms if batch else 0,
        "attempts": failed.count if failed else 0,
        "history": history,
    }
    if letter is not None:
        error = history[-1][1] if history else ""
        shown |= {"reason": letter.reason, "died_ms": letter.died_ms, "error": error}
    return shown


def _value(queue: OpenQueue, job: int) -> tuple[bytes, int]:
    """A job's value; null if it is damaged, as the job's error tells."""
    try:
        return queue.values.one(job)
    except Corrupt:
        return encode_value(None), queue.values.places.find(job).pushed_ms
