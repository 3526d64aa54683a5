"""Single jobs and acks of one turn of the loop: of all connections, one push and one ack each.

The engine then has one batch and the journal one record where fifty clients each push one job.
Nobody waits for others: it ends with the turn. Whatever else is asked of a queue must come after
what was gathered for it: see `flush`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

from nexo.brokers.queue.batches import JobRange
from nexo.brokers.queue.jobs import NewJobs
from nexo.brokers.queue.leases import Lease
from nexo.errors import LeaseLost, NexoError, internal_error
from nexo.model.queue import PushReply
from nexo.options.described import check_range
from nexo.options.queue import MAX_DELAY_MS, MAX_PRIORITY
from nexo.services.connection import Done
from nexo.services.queue.open_queue import OpenQueue

log = logging.getLogger("nexo.queue")

MOST_JOBS, MOST_BYTES = 4096, 1024**2
"""So many are pushed or acked at once."""


class PushKind(NamedTuple):
    """What jobs that are pushed together have in common."""

    priority: int = 0
    delay_ms: int = 0
    owner: str = ""

    def check(self) -> None:
        """Raise `InvalidInput` for anything out of range."""
        check_range("priority", self.priority, MAX_PRIORITY)
        check_range("delay_ms", self.delay_ms, MAX_DELAY_MS)


@dataclass(slots=True)
class GatheredPushes:
    """Jobs of one kind, in the order they came, and whom to answer about each."""

    kind: PushKind
    values: list[bytes] = field(default_factory=list)
    waiting: list[Done[None]] = field(default_factory=list)
    size_bytes: int = 0


@dataclass(slots=True)
class GatheredAcks:
    """Jobs of one lease, and whom to answer about each."""

    waiting: dict[int, Done[None]] = field(default_factory=dict)


class WorkGathering:
    """What was asked for singly in this turn and is not done yet."""

    def __init__(
        self,
        soon: Callable[[Callable[[], None]], None],
        push: Callable[[OpenQueue, NewJobs, Done[PushReply]], None],
        ack: Callable[[OpenQueue, int, list[JobRange], Done[list[int]]], None],
    ) -> None:
        """``push`` and ``ack`` do it for many, and answer once it is durable."""
        self._soon = soon
        self._push = push
        self._ack = ack
        self._pushes: dict[OpenQueue, GatheredPushes] = {}
        self._acks: dict[tuple[OpenQueue, int], GatheredAcks] = {}

    def push(self, queue: OpenQueue, kind: PushKind, value: bytes, done: Done[None]) -> None:
        """Add a job with this turn."""
        pushes = self._pushes.get(queue)
        if pushes is None or (pushes.kind is not kind and pushes.kind != kind):
            if pushes is not None:
                self._do_push(queue, self._pushes.pop(queue))
            self._begin()
            pushes = self._pushes[queue] = GatheredPushes(kind)
        pushes.values.append(value)
        pushes.waiting.append(done)
        pushes.size_bytes += len(value)
        if len(pushes.values) >= MOST_JOBS or pushes.size_bytes >= MOST_BYTES:
            self._do_push(queue, self._pushes.pop(queue))

    def ack(self, queue: OpenQueue, lease: Lease, job: int, done: Done[None]) -> None:
        """Finish a job with this turn; `LeaseLost` if this turn has done so already."""
        acks = self._acks.get((queue, lease.token))
        if acks is None:
            self._begin()
            acks = self._acks[queue, lease.token] = GatheredAcks()
        if job in acks.waiting:
            raise LeaseLost("the job is not held by this connection")
        acks.waiting[job] = done

    def _begin(self) -> None:
        if not self._pushes and not self._acks:
            self._soon(self.flush)

    def flush(self) -> None:
        """Do what was gathered: before anything that must come after it, and with the turn."""
        if self._acks:
            acked, self._acks = self._acks, {}
            for (queue, token), acks in acked.items():
                self._do_ack(queue, token, acks)
        if self._pushes:
            pushed, self._pushes = self._pushes, {}
            for queue, pushes in pushed.items():
                self._do_push(queue, pushes)

    def _do_push(self, queue: OpenQueue, pushes: GatheredPushes) -> None:
        waiting, kind = pushes.waiting, pushes.kind

        def done(result: PushReply | NexoError) -> None:
            error = result if isinstance(result, NexoError) else None
            for answer in waiting:
                _answer(answer, error)

        jobs = NewJobs.of(pushes.values, kind.priority, kind.delay_ms, kind.owner)
        try:
            self._push(queue, jobs, done)
        except NexoError as error:
            if len(waiting) == 1:
                done(error)
            else:  # there may be room for some of them
                for value, answer in zip(pushes.values, waiting, strict=True):
                    self._do_push(queue, GatheredPushes(kind, [value], [answer]))
        except Exception:
            log.exception("jobs could not be pushed")
            done(internal_error())

    def _do_ack(self, queue: OpenQueue, token: int, acks: GatheredAcks) -> None:
        def done(lost: list[int] | NexoError) -> None:
            for job, answer in acks.waiting.items():
                if isinstance(lost, NexoError):
                    _answer(answer, lost)
                elif job in lost:
                    _answer(answer, LeaseLost("the lease has ended"))
                else:
                    _answer(answer, None)

        try:
            self._ack(queue, token, _runs(sorted(acks.waiting)), done)
        except NexoError as error:
            done(error)
        except Exception:
            log.exception("jobs could not be acked")
            done(internal_error())


def _runs(jobs: list[int]) -> list[JobRange]:
    """Numbers in ascending order as ranges."""
    breaks = [job for job, following in pairwise(jobs) if following != job + 1]
    begins = [following for job, following in pairwise(jobs) if following != job + 1]
    lows, highs = [jobs[0], *begins], [*breaks, jobs[-1]]
    return [(low, high + 1) for low, high in zip(lows, highs, strict=True)]


def _answer(done: Callable[[Any], None], result: object) -> None:
    try:
        done(result)
    except Exception:  # the others are still answered
        log.exception("a client could not be answered")
