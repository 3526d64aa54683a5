"""All queues of the broker, by name, each in a folder of its own.

A start opens only some: the others are opened when they are first asked for, and meanwhile one
after the other in the background, so that a start takes no longer with very many.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from nexo.errors import Corrupt, DiskFailed, NexoError, NotFound
from nexo.model import check_name, name_of_segment, path_segment
from nexo.model.names import text_of
from nexo.options.queue import QueueOptions
from nexo.services.queue.open_queue import OpenQueue
from nexo.services.queue.values import Budget
from nexo.services.service import Runtime
from nexo.storage.journal import Loss
from nexo.storage.removal import Removals

log = logging.getLogger("nexo.queue")

_SET_ASIDE = (".cut", ".damaged")
"""Suffixes of copies of damaged bytes; a folder with one is kept."""
OPENED_AT_START = 500
"""Opening so many takes about a tenth of a second."""


class QueueRegistry:
    """Finds, creates and deletes queues."""

    def __init__(self, runtime: Runtime, opened: Callable[[OpenQueue, int], None]) -> None:
        """``opened(queue, now_ms)`` follows once a queue from disk is open."""
        self._runtime = runtime
        self._opened = opened
        self._budget = Budget()
        self._removals = Removals(runtime.files, runtime.folder)
        self._by_name: dict[str, OpenQueue | None] = {}
        """Every queue; None for one that is not open yet."""
        self._unopened: dict[str, None] = {}
        self._sorted: list[str] | None = None
        self._damaged: dict[str, Corrupt] = {}
        self._lost: dict[str, list[Loss]] = {}
        self._last_incarnation = 0
        self._half_made: set[str] = set()

    def __iter__(self) -> Iterator[OpenQueue]:
        """Those that are open."""
        return iter([queue for queue in self._by_name.values() if queue is not None])

    def __len__(self) -> int:
        return len(self._by_name)

    @property
    def unopened(self) -> int:
        """How many are not open yet."""
        return len(self._unopened)

    def open(self, now_ms: int) -> None:
        """Find every queue and recover the first ones; finish interrupted deletions."""
        self._removals.finish()
        segments = self._runtime.files.list(self._runtime.folder)
        names = (name_of_segment(segment) for segment in segments if not segment.startswith("."))
        self._unopened = dict.fromkeys(names)
        self._by_name.update(self._unopened)
        for name in [*self._unopened][:OPENED_AT_START]:
            self._open(name, now_ms)

    def open_others(self) -> Iterator[None]:
        """Open the others, one after the other; what the disk refuses is left until it is asked
        for.
        """
        for name in [*self._unopened]:
            if name in self._unopened:
                try:
                    self._open(name, self._runtime.clock.now_ms())
                except (OSError, NexoError) as error:
                    log.error("queue %s cannot be opened now: %s", name, error)
            yield

    def _open(self, name: str, now_ms: int) -> None:
        """Recover a queue; raises, with nothing changed, if the disk refuses now."""
        queue = self._load(name, now_ms)
        del self._unopened[name]
        if queue is None:
            del self._by_name[name]
            self._sorted = None
        else:
            self._by_name[name] = queue
            self._opened(queue, now_ms)

    def _load(self, name: str, now_ms: int) -> OpenQueue | None:
        """The queue of a folder; None if there is none, or if it is damaged as a whole."""
        queue = OpenQueue(name, self._folder(name), self._runtime, self._budget)
        try:
            whole = queue.load(now_ms)
        except Corrupt as error:
            # Nothing in it is touched, and the other queues work.
            log.error("queue %s is damaged and stays closed: %s", name, error)
            self._damaged[name] = Corrupt(f"Queue '{name}' is damaged: {error}")
            return None
        if not whole:
            queue.abandon()
            if not any(
                file.endswith(_SET_ASIDE) for file in self._runtime.files.list(queue.folder)
            ):
                self._runtime.files.remove(queue.folder)
            return None
        if queue.losses:
            log.error("queue %s lost records: %s", name, "; ".join(map(str, queue.losses)))
            self._lost[name] = queue.losses
        return queue

    def _folder(self, name: str) -> Path:
        return self._runtime.folder / path_segment(name)

    def get(self, name: str) -> OpenQueue | None:
        """The queue of that name, if there is one; `Corrupt` if it could not be opened."""
        if self._unopened and name in self._unopened:
            self._open(name, self._runtime.clock.now_ms())
        if self._damaged and name in self._damaged:
            raise self._damaged[name]
        return self._by_name.get(name)

    def holds(self, queue: OpenQueue) -> bool:
        """Whether this very queue still exists."""
        return self._by_name.get(queue.name) is queue

    def find(self, name: str) -> OpenQueue:
        """The queue of that name; `NotFound` otherwise."""
        queue = self.get(name)
        if queue is None:
            raise missing(name)
        return queue

    def names(self) -> list[str]:
        """All names, by creation since the start."""
        return [*self._by_name]

    def names_with(self, search: str = "") -> list[str]:
        """The names that contain ``search``, ignoring case, in order."""
        if self._sorted is None:
            self._sorted = sorted(self._by_name)
        wanted, names = search.casefold(), self._sorted
        return [name for name in names if wanted in name.casefold()] if wanted else names

    def those(self, names: Iterable[str]) -> Iterator[OpenQueue]:
        """The queues of these names, without those that are gone or damaged."""
        for name in names:
            with suppress(Corrupt):
                if (queue := self.get(name)) is not None:
                    yield queue

    def create(self, name: str, rules: QueueOptions, now_ms: int) -> OpenQueue:
        """A new queue. Not durable before the next commit."""
        check_name(name, "queue name")
        self._last_incarnation = max(now_ms, self._last_incarnation + 1)
        self._remove_half_made(name)
        queue = OpenQueue(name, self._folder(name), self._runtime, self._budget)
        try:
            queue.create(rules, self._last_incarnation, now_ms)
        except (OSError, NexoError):
            queue.abandon()
            self._half_made.add(name)
            with suppress(OSError, NexoError):  # tried again before its name is used again
                self._remove_half_made(name)
            raise
        self._by_name[name] = queue
        self._sorted = None
        return queue

    def _remove_half_made(self, name: str) -> None:
        """Remove the files of a queue whose creation the disk refused."""
        if name in self._half_made:
            self._runtime.files.remove(self._folder(name))
            self._half_made.discard(name)

    def delete(self, queue: OpenQueue) -> None:
        """Delete a queue and all its jobs, durably; if the disk rejects that, the queue stays."""
        tag = str(queue.engine.ledger.incarnation)
        try:
            self._removals.set_aside(queue.folder, tag)
        except (OSError, DiskFailed) as error:
            raise DiskFailed(f"Queue '{queue.name}' was not deleted: {error}") from None
        del self._by_name[queue.name]
        self._lost.pop(queue.name, None)
        self._sorted = None
        queue.abandon()
        self._removed(tag)

    def _removed(self, tag: str) -> None:
        """Remove the files of a queue that is gone; what the disk refuses, the next start does."""
        try:
            self._removals.forget(tag)
        except (OSError, NexoError) as error:
            log.warning("files of a deleted queue are left: %s", error)

    def losses(self) -> list[str]:
        lost = [f"{name}: {loss}" for name, losses in self._lost.items() for loss in losses]
        return lost + [error.message for error in self._damaged.values()]

    def close(self, now_ms: int) -> None:
        """Close every queue. What the disk refuses to take was not acknowledged."""
        for queue in self:
            try:
                queue.close(now_ms)
            except (OSError, NexoError) as error:
                log.error("queue %s: its last changes are not saved: %s", queue.name, error)
                queue.abandon()
            self._runtime.progress()


def missing(name: str) -> NotFound:
    """The error for a queue that does not exist."""
    return NotFound(f"queue {text_of(name)[:255]!r} not found: create it first")
