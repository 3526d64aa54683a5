"""The queue broker: requests in, engines, log, replies out."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from heapq import heappop, heappush
from random import Random
from typing import Any

from nexo.brokers.queue.leases import Lease
from nexo.brokers.queue.options import MAX_WAIT_MS, QueueOptions, check_range, defaults
from nexo.errors import NexoError
from nexo.model import Broker
from nexo.protocol.frames import Buffer
from nexo.services.queue.admin import AdminRequests
from nexo.services.queue.classic import ClassicRequests
from nexo.services.queue.deliveries import gather
from nexo.services.queue.open_queue import OpenQueue
from nexo.services.queue.registry import Registry, missing
from nexo.services.queue.totals import Totals
from nexo.services.queue.turn import Turn
from nexo.services.queue.values import Slice
from nexo.services.queue.waiters import Waiter
from nexo.services.queue.work import WorkRequests
from nexo.services.service import Answer, Handler, Peer, Runtime

log = logging.getLogger("nexo.queue")

Encoder = Callable[[OpenQueue, Lease, list[Slice]], list[Buffer]]


class QueueService:
    """Implements `nexo.services.service.Service` around all queues."""

    broker = Broker.QUEUE

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self.now_ms = runtime.clock.now_ms
        self.luck = Random().random
        self.registry = Registry(runtime)
        self.totals = Totals(self.registry)
        self.turn = Turn(runtime, self._after_turn)
        self.answers: Mapping[int, Answer] = {}
        self.handlers: Mapping[int, Handler] = (
            ClassicRequests(self).handlers
            | WorkRequests(self).handlers
            | AdminRequests(self).handlers
        )
        self._wakes: list[tuple[int, str]] = []
        self._used_by: dict[int, set[OpenQueue]] = {}
        """The queues that each connection took jobs from, or waits on."""

    # -- what the requests share ----------------------------------------------

    @property
    def defaults(self) -> QueueOptions:
        """Options of a queue that is created without any."""
        return defaults(self.runtime.settings)

    def pop(
        self,
        queue: OpenQueue,
        peer: Peer,
        request_id: int,
        encode: Encoder,
        give_up: Callable[[], None],
        limit: int,
        wait_ms: int,
        lease_ms: int = 0,
    ) -> None:
        """Answer with leased jobs, now or when there are some; ``give_up`` if there are none."""
        check_range("wait_ms", wait_ms, MAX_WAIT_MS)

        def attempt(now_ms: int) -> bool:
            while (lease := queue.engine.pop(peer.id, limit, now_ms, lease_ms)) is not None:
                if found := gather(queue, lease, now_ms, self.luck):
                    peer.data(request_id, *encode(queue, lease, found))
                    return True
            return False

        now_ms = self.now_ms()
        self._used_by.setdefault(peer.id, set()).add(queue)
        settled = queue.write_pushes(now_ms)  # else the end of the turn tells what may go out
        if not (settled and attempt(now_ms)):
            if settled and not wait_ms:
                give_up()
                return
            queue.pops.add(Waiter(peer, request_id, now_ms + wait_ms, attempt, give_up))
        self.turn.touch(queue)

    def watch(self, queue: OpenQueue, waiter: Waiter) -> None:
        """Let someone wait for the end of a job."""
        self._used_by.setdefault(waiter.peer.id, set()).add(queue)
        queue.watchers.add(waiter)
        self.turn.touch(queue)

    def delete(self, queue: OpenQueue) -> None:
        """Remove a queue; whoever waits on it is told."""
        self.turn.forget(queue)
        gone = missing(queue.name)
        queue.pops.fail_all(gone)
        queue.watchers.fail_all(gone)
        for queues in self._used_by.values():
            queues.discard(queue)
        self.registry.delete(queue)

    # -- turns and time -------------------------------------------------------

    def _after_turn(self, queue: OpenQueue, now_ms: int) -> None:
        queue.pops.serve(now_ms)
        queue.watchers.serve_any(now_ms)
        if queue.engine.outbox and not queue.is_refused:
            self.turn.touch(queue)
        if queue.checkpoint_due:
            self._checkpoint(queue, now_ms)
        self._plan_wake(queue, now_ms)

    def _checkpoint(self, queue: OpenQueue, now_ms: int) -> None:
        """Snapshots only save time: if one fails, the log still has everything."""
        try:
            queue.checkpoint(now_ms)
        except (NexoError, OSError):
            log.exception("queue %s: no snapshot could be written", queue.name)
            queue.postpone_checkpoint()

    def _plan_wake(self, queue: OpenQueue, now_ms: int) -> None:
        due_ms = queue.next_ms(now_ms)
        if due_ms is None or (queue.wake_ms is not None and queue.wake_ms <= due_ms):
            return
        queue.wake_ms = due_ms
        heappush(self._wakes, (due_ms, queue.name))
        self.runtime.wake_at(due_ms)

    def tick(self, now_ms: int) -> None:
        """Do what is due in each queue."""
        while self._wakes and self._wakes[0][0] <= now_ms:
            due_ms, name = heappop(self._wakes)
            queue = self.registry.get(name)
            if queue is not None and queue.wake_ms == due_ms:
                self._tick_queue(queue, now_ms)
        self.turn.retry()
        if self._wakes:
            self.runtime.wake_at(self._wakes[0][0])

    def _tick_queue(self, queue: OpenQueue, now_ms: int) -> None:
        queue.wake_ms = None
        queue.engine.tick(now_ms, self.luck)
        queue.pops.expire(now_ms)
        queue.watchers.expire(now_ms)
        self.turn.touch(queue)

    # -- the host's calls -----------------------------------------------------

    def open(self) -> None:
        """Recover every queue."""
        now_ms = self.now_ms()
        self.registry.open(now_ms)
        for queue in self.registry:
            self._plan_wake(queue, now_ms)

    def cancel(self, peer: Peer, request_id: int) -> None:
        """End a long poll early."""
        for queue in self._used_by.get(peer.id, ()):
            waiter = queue.pops.pop(peer.id, request_id)
            waiter = waiter or queue.watchers.pop(peer.id, request_id)
            if waiter is not None:
                waiter.give_up()
                return

    def peer_congested(self, peer: Peer) -> None:
        """A slow reader asks for no more jobs by itself."""

    def peer_drained(self, peer: Peer) -> None:
        """Nothing was held back."""

    def peer_closed(self, peer: Peer) -> None:
        """Free the jobs of a lost consumer at once (SPEC D8)."""
        for queue in self._used_by.pop(peer.id, ()):
            queue.pops.drop_peer(peer.id)
            queue.watchers.drop_peer(peer.id)
            if queue.engine.release_holder(peer.id, self.now_ms()):
                self.turn.touch(queue)

    def status(self) -> dict[str, Any]:
        """Counts of the whole broker; Q_SURVEY has those of each queue."""
        return {"queues": len(self.registry), **self.totals.read()}

    def close(self) -> None:
        """Answer who waits, and save every queue."""
        for queue in self.registry:
            queue.pops.give_up_all()
            queue.watchers.give_up_all()
        self.registry.close(self.now_ms())
