"""Leased and listed jobs as bytes for the wire."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from nexo.brokers.queue.leases import Lease
from nexo.protocol.frames import Buffer, pack_u32
from nexo.protocol.queue import Delivery, Piece, encode_head, id_text, pack_id, values_of
from nexo.server.dialects.nexo.queue.open_queue import OpenQueue

V = TypeVar("V")

MAX_PAGE_BYTES = 4 * 1024 * 1024
"""A page of listed jobs ends early when its values reach this."""


def delivery_parts(queue: OpenQueue, lease: Lease) -> list[Buffer]:
    """The reply to our own pop: cut from blocks, without looking at single jobs."""
    ledger = queue.engine.ledger
    pieces: list[Piece] = []
    parts: list[Buffer] = []
    for lo, hi in lease.runs:
        for found in queue.values.slices(lo, hi, last_use=True):
            batch = ledger.batches.of(found.first)
            priority = batch.priority if batch else 0
            pieces.append(Piece(found.first, found.jobs, priority, found.pushed_ms))
            parts += (found.ends, found.content)
    attempts = {job: failed.count + 1 for job, failed in _among(ledger.failures, lease).items()}
    head = Delivery(
        ledger.incarnation, lease.token, lease.lease_ms, pieces, attempts,
        _among(ledger.keys, lease),
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


def classic_parts(queue: OpenQueue, lease: Lease) -> list[Buffer]:
    """The reply to Q_CONSUME: ``count u32, {id 16 bytes, length u32, value}*``."""
    incarnation = queue.engine.ledger.incarnation
    parts: list[Buffer] = [pack_u32(lease.count)]
    for lo, hi in lease.runs:
        for found in queue.values.slices(lo, hi, last_use=True):
            for job, value in enumerate(values_of(found.ends, found.content), found.first):
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
    value, pushed_ms = queue.values.one(job)
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
