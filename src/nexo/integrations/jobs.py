"""Tasks of frameworks as jobs: how they are written, and settled in the background.

Frameworks fetch jobs ahead and settle them one by one, from any thread, without waiting. Here one
thread sends settlements: all that came while the last request was under way leave together.
`HeldLeases` keeps their leases.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from itertools import groupby
from typing import Any, NamedTuple

from nexo.client._sync.link.link import Link
from nexo.client._sync.queue.jobs import Job
from nexo.client._sync.queue.leases import HeldLeases
from nexo.errors import ConnectionLost, NexoError
from nexo.integrations.sending import BackgroundSender
from nexo.model.queue import JobOutcome
from nexo.protocol.ops import Op
from nexo.protocol.queue import Settled, SettleJobs, decode, encode

log = logging.getLogger("nexo.integrations")

MAX_RETRIES = 20
"""How often a job may lose its worker before it is a dead letter, in queues created here."""
_TRIES = 3
_GATHERED = 32
"""Settlements wait for others until there are this many."""


def text_if_utf8(content: bytes) -> str | bytes:
    """Content as text if it can be, so that people can read the job."""
    try:
        return content.decode()
    except UnicodeDecodeError:
        return content


class HeldJob(NamedTuple):
    """Where a held job is: its queue, the lease, its number."""

    queue: str
    token: int
    number: int

    @classmethod
    def of(cls, job: Job[Any]) -> HeldJob:
        return cls(job._batch.queue, job._batch.delivery.token, job.number)


class Settlement(NamedTuple):
    """The outcome of a job."""

    place: HeldJob
    how: JobOutcome
    error: str
    then: Callable[[], None] = lambda: None
    """Called once the server knows."""


class Settlements(BackgroundSender[Settlement]):
    """Sends the server what becomes of jobs."""

    def __init__(self, link: Link, leases: HeldLeases) -> None:
        super().__init__("nexo-settle", _GATHERED)
        self._link = link
        self._leases = leases

    def send(self, items: list[Settlement]) -> None:
        for (queue, how, error), group in groupby(items, key=_alike):
            alike = list(group)
            self._send(queue, how, error, [each.place for each in alike])
            for each in alike:
                each.then()

    def _send(self, queue: str, how: JobOutcome, error: str, places: list[HeldJob]) -> None:
        leases = [Settled(token, runs) for token, runs in _runs(places).items()]
        request = encode(SettleJobs(queue, how, leases, error))
        try:
            refused = self._call(request)
            if refused:
                log.warning("%d jobs of queue %s were no longer held", len(refused), queue)
        except NexoError as failure:
            log.warning("%d jobs of queue %s were not settled: %s", len(places), queue, failure)
        for place in places:
            self._leases.let_go(place.queue, place.token, (place.number,))

    def _call(self, request: bytes) -> list[tuple[int, int]]:
        """Settle, again if the connection is lost: the server refuses what it has already done."""
        for left in reversed(range(_TRIES)):
            try:
                reply = self._link.call(Op.Q_SETTLE, request)
                return decode(reply, list[tuple[int, int]]) if reply else []
            except ConnectionLost:
                if not left:
                    raise
        raise AssertionError("the last try returns or raises")


def _alike(each: Settlement) -> tuple[str, JobOutcome, str]:
    return each.place.queue, each.how, each.error


def _runs(places: list[HeldJob]) -> dict[int, list[int]]:
    """The jobs of each lease, as runs of one."""
    found: dict[int, list[int]] = {}
    for place in places:
        found.setdefault(place.token, []).extend((place.number, place.number + 1))
    return found
