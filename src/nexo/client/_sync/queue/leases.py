# Generated from _async/queue/leases.py by tools/unasync.py; edit that file instead.
"""Renews the leases of jobs until somebody has finished or given up each of them."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from itertools import groupby
from operator import itemgetter
from threading import Lock
from typing import Any, NamedTuple
from weakref import ref

from nexo.client._sync import runtime
from nexo.client._sync.handling import RENEWALS_PER_LEASE
from nexo.client._sync.link.link import Duplex, Link
from nexo.client._sync.queue.jobs import JobBatch
from nexo.errors import NexoError
from nexo.protocol.ops import Op
from nexo.protocol.queue import RenewLeases, decode, encode

log = logging.getLogger("nexo.client")

_LONGEST_S = 10.0
"""Leases are renewed at least this often."""


class _Held(NamedTuple):
    """The jobs of one lease."""

    numbers: set[int]
    batch: ref[JobBatch[Any]]
    """Not to be kept alive: it has the values of all its jobs."""

    def is_open(self) -> bool:
        """Whether some of its jobs are not settled."""
        batch = self.batch()
        return batch is None or batch.unsettled > 0


class HeldLeases:
    """The leases of jobs that are held, renewed until they are let go; any thread may call."""

    def __init__(self, link: Link | Duplex, name: str) -> None:
        """``name`` is for the task that renews, which starts with the first job."""
        self._link = link
        self._name = name
        self._held: dict[tuple[str, int], _Held] = {}
        self._period_s = _LONGEST_S
        self._wake = runtime.Event()
        self._closed = False
        self._task: runtime.Task | None = None
        self._guard = Lock()

    def hold(self, batch: JobBatch[Any], numbers: set[int]) -> None:
        """Renew the lease of these jobs; takes the set over."""
        self._held[batch.queue, batch.delivery.token] = _Held(numbers, ref(batch))
        if self._task is None:
            self._start()
        period_s = batch.delivery.lease_ms / 1_000 / RENEWALS_PER_LEASE
        if period_s < self._period_s:
            self._period_s = period_s
            self._wake.set()

    def _start(self) -> None:
        with self._guard:
            if self._task is None and not self._closed:
                self._task = runtime.spawn(self._run, name=self._name)

    def let_go(self, queue: str, token: int, numbers: Iterable[int]) -> None:
        """Nobody works on these jobs any more, settled or not."""
        held = self._held.get((queue, token))
        if held is not None:
            held.numbers.difference_update(numbers)
            if not held.numbers:
                self._held.pop((queue, token), None)

    def close(self) -> None:
        """Renew no more."""
        self._closed = True
        self._wake.set()

    def join(self, timeout_s: float | None) -> None:
        """Wait for the end of the task, after `close`."""
        if self._task is not None:
            self._task.join(timeout_s)

    def _run(self) -> None:
        while not self._closed:
            self._wake.wait(self._period_s)
            self._wake.clear()
            for queue, leases in groupby(sorted(self._held), itemgetter(0)):
                self._renew(queue, [token for _, token in leases])

    def _renew(self, queue: str, tokens: list[int]) -> None:
        try:
            reply = self._link.call(Op.Q_RENEW, encode(RenewLeases(queue, tokens)))
        except NexoError as error:
            log.info("leases of queue %s were not renewed: %s", queue, error)
            return
        for token in decode(reply or b"\x90", list[int]):
            held = self._held.pop((queue, token), None)
            if held is not None and held.is_open():
                log.warning("a lease of queue %s was lost: its jobs run elsewhere", queue)
