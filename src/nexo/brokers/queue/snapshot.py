"""Encodes a queue's durable state for a snapshot."""

from __future__ import annotations

from typing import Any

import msgspec

from nexo.brokers.queue import places
from nexo.brokers.queue.batches import DONE, OPEN, JobBatchRange
from nexo.brokers.queue.ledger import Failures, JobDeath, Ledger
from nexo.brokers.queue.lifetimes import Results
from nexo.brokers.queue.records import CronSet, Resulted
from nexo.brokers.queue.schedules import Schedules
from nexo.errors import Corrupt
from nexo.options.queue import read_options


class _Batch(msgspec.Struct, array_like=True):
    base: int
    priority: int
    due_ms: int
    expires_ms: int
    marks: bytes
    owner: str = ""


class _Image(msgspec.Struct, forbid_unknown_fields=True):
    incarnation: int
    created_ms: int
    options: dict[str, Any]
    paused: bool
    next_job: int
    batches: list[_Batch]
    failures: dict[int, Failures]
    dead: dict[int, JobDeath]
    keys: dict[int, str]
    dedup_keys: dict[int, str]
    crons: dict[str, CronSet]
    results: dict[int, Resulted]
    totals: dict[str, int]
    places: places.Image
    replaced: dict[int, int] = {}


_COPIED = (
    "incarnation", "created_ms", "paused", "next_job", "failures", "dead", "keys",
    "dedup_keys", "totals", "replaced",
)  # fmt: skip

_decoder = msgspec.msgpack.Decoder(_Image)


def snapshot(ledger: Ledger, where: places.Places) -> bytes:
    batches = [
        _Batch(b.base, b.priority, b.due_ms, b.expires_ms, bytes(b.marks), b.owner)
        for b in ledger.batches
    ]
    image = _Image(
        options=msgspec.to_builtins(ledger.options), batches=batches,
        crons=ledger.schedules.by_name, results=ledger.results.by_job, places=where.image(),
        **{name: getattr(ledger, name) for name in _COPIED},
    )  # fmt: skip
    return msgspec.msgpack.encode(image)


def restore(data: bytes) -> tuple[Ledger, places.Places]:
    """What `snapshot` saved; `Corrupt` if the bytes are not a snapshot."""
    try:
        image = _decoder.decode(data)
        where = places.Places(image.places)
        options = read_options(image.options)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise Corrupt(f"malformed queue snapshot: {error}") from None
    ledger = Ledger()
    ledger.options = options
    for name in _COPIED:
        setattr(ledger, name, getattr(image, name))
    for saved in image.batches:
        _add(ledger, saved)
    ledger.schedules = Schedules(image.crons)
    ledger.results = Results(image.results)
    ledger.dedup = {key: job for job, key in ledger.dedup_keys.items() if job not in ledger.dead}
    return ledger, where


def _add(ledger: Ledger, saved: _Batch) -> None:
    batch = JobBatchRange(
        saved.base, len(saved.marks), saved.priority, saved.due_ms, saved.expires_ms, saved.owner
    )
    batch.marks = bytearray(saved.marks)
    batch.kept = len(batch.marks) - batch.marks.count(DONE)
    ledger.open_jobs += batch.marks.count(OPEN)
    ledger.batches.add(batch)
