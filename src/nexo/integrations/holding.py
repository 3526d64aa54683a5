"""Jobs that a framework holds: their leases are renewed, and settled in the background.

Frameworks fetch jobs ahead and settle them one by one, from any thread, without waiting. Here one
thread keeps every lease alive, and one sends settlements: all that came while the last request
was under way leave together.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from itertools import groupby
from typing import Any, NamedTuple

from nexo.client._sync.link.link import Link
from nexo.client._sync.queue.jobs import Job, JobBatch
from nexo.errors import ConnectionLost, NexoError
from nexo.integrations.sending import BackgroundSender
from nexo.model.queue import JobOutcome
from nexo.protocol.ops import Op
from nexo.protocol.queue import RenewLeases, Settled, SettleJobs, decode, encode

log = logging.getLogger("nexo.integrations")

_RENEWALS_PER_LEASE = 3
_LONGEST_RENEWAL_S = 10.0
_TRIES = 3
_GATHERED = 32
"""Settlements wait for others until there are this many."""


class HeldJob(NamedTuple):
    """Where a held job is: its queue, the lease, its number."""

    queue: str
    token: int
    number: int

    @classmethod
    def of(cls, job: Job[Any]) -> HeldJob:
        return cls(job._batch.queue, job._batch.delivery.token, job.number)


class HeldLeases:
    """The leases of jobs that are held, renewed until they are let go."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._held: dict[tuple[str, int], set[int]] = {}
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._period_s = _LONGEST_RENEWAL_S
        self._closed = False
        self._thread: threading.Thread | None = None

    def hold(self, batch: JobBatch[Any], numbers: Iterable[int]) -> None:
        with self._lock:
            self._held[batch.queue, batch.delivery.token] = set(numbers)
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(target=self._run, name="nexo-leases", daemon=True)
                self._thread.start()
        period_s = batch.delivery.lease_ms / 1_000 / _RENEWALS_PER_LEASE
        if period_s < self._period_s:
            self._period_s = period_s
            self._wake.set()

    def let_go(self, place: HeldJob) -> None:
        """Stop renewing: the job is settled, or another worker's."""
        with self._lock:
            numbers = self._held.get((place.queue, place.token))
            if numbers is not None:
                numbers.discard(place.number)
                if not numbers:
                    del self._held[place.queue, place.token]

    def close(self) -> None:
        self._closed = True
        self._wake.set()

    def _run(self) -> None:
        while not self._closed:
            self._wake.wait(self._period_s)
            self._wake.clear()
            with self._lock:
                held = sorted(self._held)
            for queue, leases in groupby(held, key=lambda each: each[0]):
                self._renew(queue, [token for _, token in leases])

    def _renew(self, queue: str, tokens: list[int]) -> None:
        try:
            reply = self._link.call(Op.Q_RENEW, encode(RenewLeases(queue, tokens)))
        except NexoError as error:
            log.info("leases of queue %s were not renewed: %s", queue, error)
            return
        for token in decode(reply or b"\x90", list[int]):
            with self._lock:
                lost = self._held.pop((queue, token), None)
            if lost:
                log.warning("a lease of queue %s was lost: its jobs run elsewhere", queue)


class Settlement(NamedTuple):
    """What becomes of a job."""

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
            self._leases.let_go(place)

    def _call(self, request: bytes) -> list[tuple[int, int]]:
        """A settlement may be sent again: what the first did is refused to the second."""
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
