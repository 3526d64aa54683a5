"""What the queue use cases share: the queues, the durable turn, the waiting room, time."""

from __future__ import annotations

import logging
from collections.abc import Callable
from random import SystemRandom
from typing import TypeVar

from nexo.brokers.deadlines import KeyDeadlines
from nexo.brokers.queue.engine import Jitter
from nexo.config.settings import Settings
from nexo.errors import NexoError
from nexo.options.queue import QueueOptions
from nexo.services.connection import Done
from nexo.services.queue.open_queue import OpenQueue
from nexo.services.queue.registry import QueueRegistry, missing
from nexo.services.queue.totals import Totals
from nexo.services.service import Runtime
from nexo.services.ticking import Slices, for_each_due
from nexo.services.turn import Turn
from nexo.services.waiting import WaitingRoom

log = logging.getLogger("nexo.queue")

T = TypeVar("T")


class QueueCore:
    """All queues of one broker. Pops wait on the channel of their queue, watchers of a job's
    end on the channel ``(queue, job number)``."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self.now_ms = runtime.clock.now_ms
        self.jitter: Jitter = SystemRandom().random
        self.registry = QueueRegistry(runtime, self.plan_wake)
        self.slices = Slices(runtime)
        self.totals = Totals(self.registry)
        self.turn: Turn[OpenQueue] = Turn(runtime, self._after_turn)
        self.room = WaitingRoom()
        self.winding_down = False
        """The server is about to stop: no more jobs are leased."""
        self._deadlines: KeyDeadlines[str] = KeyDeadlines(runtime.wake_at)
        self._used_by: dict[int, dict[OpenQueue, None]] = {}
        """The queues that each connection took jobs from."""

    @property
    def settings(self) -> Settings:
        return self.runtime.settings

    @property
    def defaults(self) -> QueueOptions:
        """Options of a queue that is created without any."""
        return self.runtime.settings.queue_options

    def find_or_create(self, name: str) -> OpenQueue:
        """The queue of that name; created on first use if the server allows it (SPEC O6)."""
        queue = self.registry.get(name)
        if queue is not None:
            return queue
        if not self.runtime.settings.auto_create_queues:
            raise missing(name)
        self.runtime.check_writable()
        queue = self.registry.create(name, self.defaults, self.now_ms())
        self.turn.touch(queue)
        return queue

    def used(self, queue: OpenQueue, connection_id: int) -> None:
        """Remember that a connection may hold jobs of this queue."""
        self._used_by.setdefault(connection_id, {})[queue] = None

    def confirm(self, queue: OpenQueue, done: Done[T], result: T, *, or_undo: bool = False) -> None:
        """Answer once everything the queue did so far is as durable as promised (SPEC D7).

        ``or_undo`` is for a push: undone if the disk has no room for it.
        """
        when = self.turn.when_safe_or_undone if or_undo else self.turn.when_safe
        mode = queue.engine.options.persistence
        when(queue, mode, lambda error: done(result if error is None else error))

    def remove(self, queue: OpenQueue) -> None:
        """Delete a queue with its jobs; answers every request that waits on it."""
        self.registry.delete(queue)
        gone = missing(queue.name)
        self.turn.forget(queue, gone)
        self.room.fail(queue, gone)
        for job in list(queue.engine.watched.jobs):
            self.room.fail((queue, job), gone)
        for queues in self._used_by.values():
            queues.pop(queue, None)

    def release(self, connection_id: int) -> None:
        """Release the jobs of a connection that ended, at once (SPEC D8)."""
        for queue in self._used_by.pop(connection_id, ()):
            if queue.engine.release_holder(connection_id, self.now_ms(), self.jitter):
                self.turn.touch(queue)

    # -- time ---------------------------------------------------------------------

    def _after_turn(self, queue: OpenQueue, now_ms: int) -> None:
        self.room.wake(queue)
        for job in queue.engine.watched.take_ended():
            self.room.wake_every((queue, job))
        if queue.engine.outbox and not queue.is_refused:
            self.turn.touch(queue)
        if queue.is_sparse:
            self._save(queue, queue.shrink, now_ms)
        elif queue.checkpoint_due:
            self._save(queue, queue.checkpoint, now_ms)
        self.plan_wake(queue, now_ms)

    def _save(self, queue: OpenQueue, write: Callable[[int], None], now_ms: int) -> None:
        """Write a snapshot. It only saves time and space: if it fails, the log has everything."""
        try:
            write(now_ms)
        except (NexoError, OSError):
            log.exception("queue %s: no snapshot could be written", queue.name)
            queue.postpone_checkpoint()

    def plan_wake(self, queue: OpenQueue, now_ms: int) -> None:
        """Schedule `tick` for the next deadline of this queue."""
        due_ms = queue.next_ms(now_ms, someone_waits=self.room.waiting_on(queue))
        if due_ms is not None:
            self._deadlines.plan(queue.name, due_ms)

    def tick(self, now_ms: int) -> None:
        """Do what is due in each queue, and end waits that are due."""
        self.slices.run()
        for_each_due(self._deadlines, now_ms, lambda name: self._tick_queue(name, now_ms))
        self.room.expire(now_ms)
        self.turn.tick(now_ms)
        if (due := self.room.next_due_ms()) is not None:
            self.runtime.wake_at(due)

    def _tick_queue(self, name: str, now_ms: int) -> None:
        queue = self.registry.get(name)
        if queue is not None:
            queue.engine.tick(now_ms, self.jitter)
            self.turn.touch(queue)
