"""Keeps retained messages on disk: a journal of changes, and snapshots of it (SPEC C3)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

import msgspec

from nexo.brokers.pubsub import records
from nexo.brokers.pubsub.retained import Retained, RetainedMessages
from nexo.errors import Corrupt, NexoError
from nexo.model import Persistence
from nexo.services.service import Runtime
from nexo.services.turn import Turn
from nexo.storage.journal import Journal, Loss

log = logging.getLogger("nexo.pubsub")

CHECKPOINT_BYTES = 16 * 1024 * 1024
"""A journal shorter than this gets no snapshot."""

_snapshot = msgspec.msgpack.Decoder(list[bytes])


class RetainedJournal:
    """Implements `nexo.services.turn.Journalled`: the changes of one turn are one entry."""

    def __init__(self, runtime: Runtime, retained: RetainedMessages) -> None:
        self._runtime = runtime
        self._retained = retained
        self._mode = Persistence(runtime.settings.retained_persistence)
        self._turn: Turn[RetainedJournal] = Turn(runtime, lambda journal, now_ms: self._after())
        self._journal: Journal | None = None
        self._changes: list[bytes] = []
        self._before: list[tuple[str, Retained | None]] = []
        self._since_checkpoint = 0
        self.losses: list[Loss | str] = []
        """What was damaged on disk."""

    def open(self) -> None:
        """Rebuild what was retained; a folder of version 0.1.0 is converted."""
        runtime = self._runtime
        self._journal = Journal(
            runtime.files, runtime.folder, segment_bytes=runtime.settings.segment_bytes
        )
        recovery = self._journal.recover()
        retained, old = self._retained, set[bool]()
        for change in self._unpacked(recovery.snapshot):
            try:
                old.add(records.apply(change, retained))
            except Corrupt as error:
                self._lost(error)
        recovery.replay(lambda _, change: old.add(records.apply(change, retained)))
        retained.expire(runtime.clock.now_ms())
        self.losses += recovery.losses
        self._since_checkpoint = self._journal.size_bytes
        if True in old:
            self._checkpoint()

    def _unpacked(self, snapshot: bytes | None) -> list[bytes]:
        try:
            return [] if snapshot is None else _snapshot.decode(snapshot)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            self._lost(Corrupt(f"the snapshot of retained messages is malformed: {error}"))
            return []

    def _lost(self, error: Corrupt) -> None:
        log.error("%s", error.message)
        self.losses.append(error.message)

    def remember(self, topic: str) -> None:
        """Call before a topic's message changes: what cannot be written is undone (SPEC I7)."""
        self._before.append((topic, self._retained.get(topic)))

    def append(self, changes: Iterable[bytes], safe: Callable[[NexoError | None], None]) -> None:
        """Write changes at the end of this turn; ``safe`` is called once they are durable."""
        self._changes += changes
        self._turn.when_safe_or_undone(self, self._mode, safe)

    def close(self) -> None:
        """Write what this turn gathered, and close the files."""
        self._turn.end()
        if self._journal is not None:
            self._journal.finish()
            self._journal = None

    # -- the turn's calls -------------------------------------------------------------

    def write(self, now_ms: int) -> None:
        assert self._journal is not None
        self._journal.append(self._changes, now_ms)
        self._since_checkpoint += sum(map(len, self._changes))
        self._changes, self._before = [], []

    def undo(self, error: NexoError) -> None:
        for topic, message in reversed(self._before):
            self._retained.restore(topic, message)
        self._changes, self._before = [], []

    def _after(self) -> None:
        if self._since_checkpoint > max(CHECKPOINT_BYTES, 2 * self._retained.size_bytes):
            self._checkpoint()

    def _checkpoint(self) -> None:
        """Snapshots only save time: if one fails, the journal still has everything."""
        assert self._journal is not None
        self._since_checkpoint = 0
        now_ms = self._runtime.clock.now_ms()
        payload = msgspec.msgpack.encode(list(records.snapshot(self._retained, now_ms)))
        try:
            self._journal.checkpoint(payload)
        except (NexoError, OSError):
            log.exception("no snapshot of retained messages could be written")
