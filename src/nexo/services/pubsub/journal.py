"""Keeps retained messages on disk: a journal of changes, now and then a snapshot (SPEC C3)."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from nexo.brokers.pubsub import records
from nexo.brokers.pubsub.retained import Retained, RetainedMessages
from nexo.errors import Corrupt, NexoError, Unavailable
from nexo.model import Persistence
from nexo.services.service import Runtime
from nexo.storage.journal import Journal, Loss

CHECKPOINT_BYTES = 16 * 1024 * 1024
"""Fewer bytes of changes than this are never worth a snapshot."""

_snapshot = msgspec.msgpack.Decoder(list[bytes])


class RetainedJournal:
    """The changes of one turn are one entry; their publishers hear once it is written."""

    def __init__(self, runtime: Runtime, retained: RetainedMessages) -> None:
        self._runtime = runtime
        self._retained = retained
        self._journal: Journal | None = None
        self._changes: list[bytes] = []
        self._before: list[tuple[str, Retained | None]] = []
        self._waiting: list[Callable[[NexoError | None], None]] = []
        self._since_checkpoint = 0
        self.losses: list[Loss] = []
        """Changes that the journal lost."""

    def open(self) -> None:
        """Rebuild what was retained."""
        runtime = self._runtime
        self._journal = Journal(
            runtime.files, runtime.folder, segment_bytes=runtime.settings.segment_bytes
        )
        recovery = self._journal.recover()
        now_ms = runtime.clock.now_ms()
        records.replay(_unpacked(recovery.snapshot), self._retained, now_ms)
        recovery.replay(lambda _, change: records.apply(change, self._retained))
        self._retained.expire(now_ms)
        self.losses = recovery.losses
        self._since_checkpoint = self._journal.size_bytes

    def remember(self, topic: str) -> None:
        """Call before a topic's message changes: what cannot be written is undone (SPEC I7)."""
        self._before.append((topic, self._retained.get(topic)))

    def append(self, changes: Iterable[bytes], done: Callable[[NexoError | None], None]) -> None:
        """Write changes at the end of this turn; ``done`` hears whether they are safe."""
        if not self._waiting:
            self._runtime.soon(self._write)
        self._changes += changes
        self._waiting.append(done)

    def close(self) -> None:
        """Write what this turn gathered and give the files back."""
        self._write()
        if self._journal is not None:
            self._journal.finish()
            self._journal = None

    def _write(self) -> None:
        changes, self._changes = self._changes, []
        waiting, self._waiting = self._waiting, []
        before, self._before = self._before, []
        if self._journal is None:
            return

        def answer(error: NexoError | None) -> None:
            for done in waiting:
                done(error)

        try:
            self._append(self._journal, changes)
        except NexoError as error:
            self._undo(before)
            answer(error)
        except OSError as error:
            self._undo(before)
            answer(Unavailable(f"the retained message could not be written: {error}"))
        else:
            self._runtime.committed(Persistence.FILE_ASYNC, answer)

    def _undo(self, before: list[tuple[str, Retained | None]]) -> None:
        for topic, message in reversed(before):
            self._retained.restore(topic, message)

    def _append(self, journal: Journal, changes: list[bytes]) -> None:
        now_ms = self._runtime.clock.now_ms()
        journal.append(changes, now_ms)
        self._since_checkpoint += sum(map(len, changes))
        if self._since_checkpoint > max(CHECKPOINT_BYTES, 2 * self._retained.size_bytes):
            journal.checkpoint(
                msgspec.msgpack.encode(list(records.snapshot(self._retained, now_ms)))
            )
            self._since_checkpoint = 0


def _unpacked(snapshot: bytes | None) -> list[bytes]:
    if snapshot is None:
        return []
    try:
        return _snapshot.decode(snapshot)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise Corrupt(f"the snapshot of retained messages makes no sense: {error}") from None
