"""The durable turn: everything one turn of the loop changed is written once, then confirmed.

Use cases change an engine and register whom to answer here. At the end of the turn each
journal that changed appends its records in one entry, and answers are sent once the
promised durability is reached (SPEC D7, E3). If the disk refuses a write, changes registered
with `when_safe_or_undone` are undone, and their callers get the error at once. Changes registered
with `when_safe` stay; they are written, and their callers answered, once the disk takes them.
Who waited for `PATIENCE_MS` gets `OutcomeUnknown`: the change holds, but a restart may lose it.
An exception in the turn of one journal, or in one answer, is logged and does not affect others.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Generic, Protocol, TypeAlias, TypeVar

from nexo.errors import (
    DiskFailed,
    DiskFull,
    NexoError,
    OutcomeUnknown,
    internal_error,
)
from nexo.model import Persistence
from nexo.services.service import Runtime
from nexo.storage.disk.steady import typed

log = logging.getLogger("nexo.turn")

RETRY_MS = 1_000
"""How soon records that the disk rejected are written again."""
PATIENCE_MS = 5_000
"""How long callers wait for the disk to take what stands."""
REFUSALS = (DiskFull, DiskFailed, OutcomeUnknown, OSError)
"""What a journal raises if the disk does not take a write now, but may take it later."""

Safe: TypeAlias = Callable[[NexoError | None], None]
"""Called with None once the change is durable, or with the error if it never will be."""


class Journalled(Protocol):
    """An engine with a journal of its own: one queue, all streams, all retained messages."""

    def write(self, now_ms: int) -> None:
        """Append this turn's records in one entry; raises and keeps them if it cannot."""

    def undo(self, error: NexoError) -> None:
        """The disk rejected the records: drop the records of changes that can be undone."""


J = TypeVar("J", bound=Journalled)


class _Waiting:
    """The callers to answer about one journal."""

    __slots__ = ("standing", "undoable")

    def __init__(self) -> None:
        self.standing: list[tuple[Persistence, Safe]] = []
        self.undoable: list[tuple[Persistence, Safe]] = []


class Turn(Generic[J]):
    """Collects the work of a turn."""

    def __init__(self, runtime: Runtime, after: Callable[[J, int], None]) -> None:
        """``after(journal, now_ms)`` follows for each journal touched, even if its write failed."""
        self._runtime = runtime
        self._after = after
        self._touched: dict[J, _Waiting] = {}
        self._unwritten: dict[J, list[tuple[Persistence, Safe]]] = {}
        """Journals whose records the disk rejected, and who waits for them."""
        self._since_ms: dict[J, int] = {}
        """When the disk began to reject a journal's records."""
        self._retry_ms: int | None = None

    def touch(self, journal: J) -> None:
        """Have ``journal`` written at the end of the turn."""
        if journal not in self._touched:
            self._waiting(journal)

    def when_safe(self, journal: J, mode: Persistence, safe: Safe) -> None:
        """Call ``safe`` once everything ``journal`` did so far has the durability of ``mode``.

        Changes stand: if the disk has no room, ``safe`` waits until there is.
        """
        self._waiting(journal).standing.append((mode, safe))

    def when_safe_or_undone(self, journal: J, mode: Persistence, safe: Safe) -> None:
        """Like `when_safe`, but a full disk is reported at once, after `Journalled.undo`."""
        self._waiting(journal).undoable.append((mode, safe))

    def forget(self, journal: J, error: NexoError) -> None:
        """Drop a deleted journal; waiting callers get ``error``."""
        waiting = self._accepted(journal)
        if (touched := self._touched.pop(journal, None)) is not None:
            waiting = waiting + touched.standing + touched.undoable
        _for_all([safe for _, safe in waiting])(error)

    def tick(self, now_ms: int) -> None:
        """Retry, when it is time, to write what the disk rejected."""
        if self._retry_ms is None:
            return
        if now_ms < self._retry_ms:
            self._runtime.wake_at(self._retry_ms)
            return
        self._retry_ms = None
        for journal in self._since_ms:
            self.touch(journal)

    def close(self) -> None:
        """Answer who still waits for the disk: nothing more is written."""
        for journal in list(self._since_ms):
            self._give_up(journal)

    def end(self) -> None:
        """Write what changed, and answer when it is durable."""
        touched, self._touched = self._touched, {}
        now_ms = self._runtime.clock.now_ms()
        for journal, waiting in touched.items():
            error = self._write(journal, now_ms)
            if error is None:
                late = self._accepted(journal) if self._since_ms else []
                self._confirm(late + waiting.standing + waiting.undoable)
            else:
                self._rejected(journal, waiting, error, now_ms)
        for journal in touched:
            try:
                self._after(journal, now_ms)
            except Exception:
                log.exception("the work after a turn failed")

    # -- inside -------------------------------------------------------------------

    def _waiting(self, journal: J) -> _Waiting:
        if not self._touched:
            self._runtime.soon(self.end)
        waiting = self._touched.get(journal)
        if waiting is None:
            waiting = self._touched[journal] = _Waiting()
        return waiting

    def _write(self, journal: J, now_ms: int) -> NexoError | None:
        try:
            journal.write(now_ms)
        except NexoError as error:
            failure = error
        except OSError as error:
            failure = typed(error, "a journal")
        except Exception:
            log.exception("a journal could not be written")
            failure = internal_error()
        else:
            return None
        try:
            journal.undo(failure)
        except Exception:
            log.exception("a rejected change could not be undone")
        return failure

    def _rejected(self, journal: J, waiting: _Waiting, error: NexoError, now_ms: int) -> None:
        _for_all([safe for _, safe in waiting.undoable])(error)
        if not isinstance(error, REFUSALS):  # final: retrying will not help
            standing = self._accepted(journal) + waiting.standing
            _for_all([safe for _, safe in standing])(error)
            return
        self._unwritten.setdefault(journal, []).extend(waiting.standing)
        if now_ms - self._since_ms.setdefault(journal, now_ms) >= PATIENCE_MS:
            self._give_up(journal)
        self._retry_ms = now_ms + RETRY_MS
        self._runtime.wake_at(self._retry_ms)

    def _accepted(self, journal: J) -> list[tuple[Persistence, Safe]]:
        """Nothing of this journal waits for the disk any more; returns who did."""
        self._since_ms.pop(journal, None)
        return self._unwritten.pop(journal, [])

    def _give_up(self, journal: J) -> None:
        """Answer who waits; the records are kept, and written when the disk takes them."""
        waiting = self._unwritten.pop(journal, [])
        _for_all([safe for _, safe in waiting])(
            OutcomeUnknown(
                "the disk does not take the record of this change: it holds now, and is lost only "
                "if the server ends before the disk takes it; free some space"
            )
        )

    def _confirm(self, waiting: list[tuple[Persistence, Safe]]) -> None:
        """Request one sync per mode; without any caller, the next periodic sync."""
        if not waiting:
            self._runtime.committed(Persistence.FILE_ASYNC, _NOBODY)
            return
        if len(waiting) == 1:
            [(mode, safe)] = waiting
            self._runtime.committed(mode, _for_all([safe]))
            return
        by_mode: dict[Persistence, list[Safe]] = {}
        for mode, safe in waiting:
            by_mode.setdefault(mode, []).append(safe)
        for mode, group in by_mode.items():
            self._runtime.committed(mode, _for_all(group))


def _for_all(group: list[Safe]) -> Safe:
    def answer(error: NexoError | None) -> None:
        for safe in group:
            try:
                safe(error)
            except Exception:  # the others of the group are still answered
                log.exception("a caller could not be answered")

    return answer


_NOBODY = _for_all([])
