"""What all parts of the stream service share: the engine, its journal, and when replies go out."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from functools import partial, reduce
from pathlib import Path
from typing import TypeVar

import msgspec

from nexo.brokers.stream.cleanup.retention import HotTier
from nexo.brokers.stream.engine import StreamEngine
from nexo.brokers.stream.groups.shared import SharedGroup
from nexo.brokers.stream.options import defaults
from nexo.brokers.stream.pressure import Pressure
from nexo.brokers.stream.publishing import Placed
from nexo.brokers.stream.records import BUILT_ON, Checked, JournalRecord, StreamSnapshot
from nexo.brokers.stream.registry import OpenStream
from nexo.errors import DiskFull, NexoError, NotFound
from nexo.model import Persistence, safer
from nexo.services.connection import Done
from nexo.services.stream.capturing import Capturing
from nexo.services.stream.exposure import ExposureControl, SyncReportingRuntime
from nexo.services.stream.folders import adopt, found_folders
from nexo.services.stream.lake import LakeTier
from nexo.services.stream.pending_deletions import PendingDeletions
from nexo.services.stream.replay import LakeReplay
from nexo.services.turn import Safe, Turn
from nexo.services.waiting import Wait, WaitingRoom
from nexo.storage.journal import Journal, Loss
from nexo.storage.log import SegmentedLog
from nexo.storage.ports import Log

log = logging.getLogger("nexo.stream")

T = TypeVar("T")

SNAPSHOT_BYTES = 16 * 1024**2
"""The journal's growth after which a new snapshot of the whole state is written."""

_encode = msgspec.msgpack.Encoder().encode
_decode_record = msgspec.msgpack.Decoder(JournalRecord).decode
_decode_snapshot = msgspec.msgpack.Decoder(StreamSnapshot).decode


class Core:
    """One broker's engine on disk."""

    def __init__(self, runtime: SyncReportingRuntime) -> None:
        settings = runtime.settings
        self.runtime = runtime
        self.waits = WaitingRoom()
        self.engine = StreamEngine(self._open_log, defaults(settings))
        self.hot = HotTier(settings.hot_ms, settings.hot_messages)
        self.pressure = Pressure(settings.stream_unsynced_bytes)
        self.replay = LakeReplay(LakeTier(settings))
        self.exposure = ExposureControl(runtime, self.pressure)
        self._pending_deletions = PendingDeletions(runtime.files, runtime.folder / "streams")
        self.started_ms = runtime.clock.now_ms()
        self._journal: Journal | None = None
        self._journal_mark = 0
        self.snapshot_bytes = SNAPSHOT_BYTES
        self.on_grown: Callable[[OpenStream], None] = lambda _stream: None
        """Called with a stream when much was written to it."""
        self._saving = self._save_wanted = False
        self._turn: Turn[Core] = Turn(runtime, Core._wake_touched)
        self._touched: dict[int, OpenStream] = {}
        self._unjournalled: set[int] = set()
        """Streams that their first use has created in this turn."""
        self._capturing: Capturing | None = None
        self.losses: list[Loss] = []
        """What the journal lost."""
        self._power_kept = False
        """No power was lost since the last start, or since an orderly end."""
        self._unsynced_records = 0

    @property
    def journal(self) -> Journal:
        """The journal; there is none before `open`."""
        assert self._journal is not None
        return self._journal

    @property
    def now_ms(self) -> int:
        """The time."""
        return self.runtime.clock.now_ms()

    def check_there(self, stream: OpenStream) -> None:
        """Raise `NotFound` if a stream was deleted since it was looked up."""
        if self.engine.streams.numbered(stream.id) is not stream:
            raise NotFound(f"stream {stream.name!r} was deleted")

    def find_or_create(self, name: str) -> OpenStream:
        """A stream by name, made with the default options if the server creates by first use.

        Then nothing about it may be acknowledged but through `when_appended` or `when_safe`.
        """
        streams = self.engine.streams
        if name in streams or not self.runtime.settings.auto_create_streams:
            return streams.get(name)
        self.runtime.check_writable()
        stream = self.engine.create(name, {}, self.now_ms)
        self._unjournalled.add(stream.id)
        self.end_turn_soon()
        return stream

    def folder_of(self, stream: OpenStream) -> Path:
        """Where a stream's logs are."""
        return self.runtime.folder / "streams" / stream.folder

    def _open_log(self, folder: str, partition: int, persistence: Persistence) -> Log:
        return SegmentedLog(
            self.runtime.files,
            self.runtime.folder / "streams" / folder / str(partition),
            segment_bytes=self.runtime.settings.segment_bytes,
            room_ahead=persistence is Persistence.FILE_SYNC,
            power_kept=self._power_kept,
        )

    # -- life ----------------------------------------------------------------------

    def open(self) -> None:
        """Recover the state; streams recover when they are first used."""
        self._journal = Journal(self.runtime.files, self.runtime.folder / "journal")
        recovery = self.journal.recover()
        replayed: list[tuple[int, JournalRecord]] = []
        if recovery.snapshot is not None:
            self.engine.restore(_decode_snapshot(recovery.snapshot))

        def apply(offset: int, raw: bytes) -> None:
            record = _decode_record(raw)
            self.engine.apply(record)
            replayed.append((offset, record))

        recovery.replay(apply)
        self.losses = recovery.losses
        self._power_kept = self.engine.boot_id in {"", self.runtime.files.boot_id}
        self._journal_mark = self.journal.size_bytes
        for folder in self.engine.take_deleted():
            self.runtime.files.remove(self.runtime.folder / "streams" / folder)
        self._look_at_folders()
        for number in self._pending_deletions.found():
            if (stream := self.engine.streams.numbered(number)) is not None:
                self.engine.delete(stream.name, self.now_ms)
            self._close_grave_when_safe(number)
        self._resume()
        if self.runtime.settings.stream_cdc:
            self._open_capture(replayed)

    def _look_at_folders(self) -> None:
        """Use no number again, and serve streams of which only the creation was lost."""
        streams, files = self.engine.streams, self.runtime.files
        for found in found_folders(files, self.runtime.folder / "streams"):
            if self.losses and adopt(self.engine, files, found, self.now_ms):
                log.error(
                    "the creation of stream %r was lost: it goes on with the default options",
                    found.name,
                )
            streams.next_id = max(streams.next_id, found.number + 1)

    def _resume(self) -> None:
        """Make sure, before any offset is told, that none is told twice (SPEC E2)."""
        files, ended_well = self.runtime.files, not self.engine.boot_id
        for stream in self.engine.lost_power(files.boot_id):
            try:
                self.engine.jump_ahead(stream)
            except (NexoError, OSError):
                log.exception("power was lost; stream %r may repeat offsets", stream.name)
        try:
            if not ended_well:
                files.sync_all(self.runtime.folder)
            self.engine.opened(files.boot_id)
            self._append_journal(self.now_ms)
            if len(self.engine.streams):
                self.journal.log.sync()  # else it comes before the first stream in the journal
        except (NexoError, OSError):
            # A failed sync is final: nothing will be acknowledged, but all can be read.
            log.exception("the start could not be made durable")

    def delete(self, name: str, done: Safe) -> OpenStream:
        """Delete a stream; ``done`` hears when that is durable, on a full disk too (SPEC I7)."""
        stream = self.engine.delete(name, self.now_ms)
        mode = safer(Persistence.FILE_SYNC, stream.options.persistence)

        def written(error: NexoError | None) -> None:
            if isinstance(error, DiskFull) and self._pending_deletions.bury(stream):
                self._close_grave_when_safe(stream.id)
                done(None)
            elif isinstance(error, DiskFull):
                self.when_safe(mode, written)
            else:
                if error is None:
                    self.runtime.files.remove(self.folder_of(stream))
                done(error)

        self.when_safe_or_undone(mode, written)
        return stream

    def _close_grave_when_safe(self, number: int) -> None:
        def safe(error: NexoError | None) -> None:
            if error is None:
                self._pending_deletions.forget(number)

        self.when_safe(Persistence.FILE_SYNC, safe)

    def _open_capture(self, replayed: list[tuple[int, JournalRecord]]) -> None:
        """Go on capturing changes: first what a crash left out, unless there was no capture."""
        self._capturing = Capturing(self.engine, self.runtime.clock, self._show_when_safe)
        for stream in self._capturing.sources():
            stream.partitions()
            self.touched(stream)
        self._capturing.journalled([] if self._capturing.is_new else replayed)

    def close(self) -> None:
        """Write the state down, so that the next start is quick; all logs are synced by now."""
        try:
            self._append_journal(self.now_ms)
        except (NexoError, OSError):
            log.exception("the last changes could not be journalled; the snapshot has them")
        self._save(synced=True)
        for stream in self.engine.streams:
            stream.close()
        self.journal.finish()

    def _save(self, *, synced: bool) -> None:
        """Snapshot the state and begin a new journal."""
        self.journal.checkpoint(_encode(self.engine.snapshot(synced=synced)))
        self._journal_mark = self.journal.size_bytes

    def _save_after_checkpoints(self, error: NexoError | None) -> None:
        """Write a snapshot that builds on the checkpoints just made durable."""
        self._saving = False
        if error is not None:
            return
        try:
            self._append_journal(self.now_ms)
            self._save(synced=False)
        except (NexoError, OSError):
            # The journal has everything, so nothing is lost: it only grows until the next try.
            log.exception("the state could not be saved")

    # -- turns -----------------------------------------------------------------------

    def when_safe(self, mode: Persistence, done: Safe) -> None:
        """Call ``done`` once all that this turn changed has the safety of ``mode``.

        What was done stands: if the disk has no room for it, ``done`` waits until there is.
        """
        self._turn.when_safe(self, mode, done)

    def when_safe_or_undone(self, mode: Persistence, done: Safe) -> None:
        """As `when_safe`, but hear of a full disk at once: ``done`` then undoes what was done."""
        self._turn.when_safe_or_undone(self, mode, done)

    def when_appended(self, stream: OpenStream, mode: Persistence, done: Safe) -> None:
        """Call ``done`` once what was appended to a stream's log has the safety of ``mode``.

        Does not wait for the end of the turn, as the journal is not concerned, unless the stream
        itself is new.
        """
        if stream.id in self._unjournalled:
            self.when_safe(mode, done)
        else:
            self.runtime.committed(mode, done)

    def done_when_safe(self, mode: Persistence, done: Done[T], result: T) -> None:
        """Give ``done`` the result once all that this turn changed has the safety of ``mode``."""
        self.when_safe(mode, lambda error: done(result if error is None else error))

    def end_turn_soon(self) -> None:
        """Write the journal and wake waiting consumers after this turn's requests."""
        self._turn.touch(self)

    def tick(self, now_ms: int) -> None:
        """Write again what the disk had no room for."""
        self._turn.tick(now_ms)

    def write(self, now_ms: int) -> None:
        """Write the journal at the end of a turn; see `nexo.services.turn.Journalled`."""
        if self._capturing is not None and self._capturing.grown:
            self._capturing.follow()
        for stream in self.engine.take_grown():
            self.on_grown(stream)
        for record in self.engine.take_checkpoints():
            self.runtime.committed(Persistence.FILE_SYNC, partial(self._checked, record))
        if self._save_wanted:
            self._save_wanted = False
            self.runtime.committed(Persistence.FILE_SYNC, self._save_after_checkpoints)
        self._append_journal(now_ms)

    def undo(self, error: NexoError) -> None:
        """Nothing to do: the records are kept, and callers undo their own changes."""

    def _checked(self, record: Checked, error: NexoError | None) -> None:
        if error is None:
            self.engine.checked(record)
            self.end_turn_soon()

    def _append_journal(self, now_ms: int) -> None:
        """Append this turn's records; they are kept for the next attempt if that fails."""
        records = self.engine.drain()
        if not records:
            return
        try:
            twice = any(isinstance(record, BUILT_ON) for record in records)
            raw = [_encode(record) for record in records]
            first = self.journal.append(raw, now_ms, twice=twice)
        except (NexoError, OSError):
            self.engine.undone(records)
            raise
        self._unjournalled.clear()
        if self._capturing is not None:
            self._capturing.journalled(enumerate(records, first))
        grown_bytes = self.journal.size_bytes - self._journal_mark
        if grown_bytes > self.snapshot_bytes and not self._saving:
            self._saving = self._save_wanted = True
            self.engine.checkpoint_all()
            self.end_turn_soon()

    # -- waking ------------------------------------------------------------------------

    def show(self, stream: OpenStream, placed: list[Placed]) -> None:
        """Records are safe: readers may see them."""
        for place in placed:
            stream.partition(place.partition).synced(place.offset + place.count)
        self.touched(stream)

    def touched(self, stream: OpenStream) -> None:
        """There may be something new for those who wait on the stream."""
        if self._capturing is not None:
            self._capturing.grown[stream.id] = stream
            self.end_turn_soon()
        if self.waits.waiting_under(stream.id):
            self._touched[stream.id] = stream
            self.end_turn_soon()

    def _show_when_safe(self, stream: OpenStream, placed: list[Placed]) -> None:
        def safe(error: NexoError | None) -> None:
            if error is None:
                self.show(stream, placed)

        self.runtime.committed(self.exposure.mode(stream, placed), safe)

    def _wake_touched(self, _now_ms: int) -> None:
        touched, self._touched = self._touched, {}
        for number in touched:
            self.waits.wake_under(number)

    def answer_or_wait(self, wait: Wait) -> None:
        """Answer a request that may wait, now or when there is news for it."""
        if self.waits.answer_or_wait(wait, self.now_ms):
            self.runtime.wake_at(wait.due_ms)

    def changed(self, stream: OpenStream, name: str, group: SharedGroup) -> None:
        """A group did something: journal it, mind its next deadline."""
        self.engine.changed(stream, name, group)
        self.end_turn_soon()

    def appended(self, records: int) -> None:
        """Count towards the early sync of ``file_async`` (SPEC E3), and the next checkpoint."""
        if self.engine.wanted:
            self.end_turn_soon()
        self._unsynced_records += records
        if self._unsynced_records >= self.runtime.settings.flush_messages:
            self._unsynced_records = 0
            self.runtime.sync_soon()


def safest(streams: Iterable[OpenStream]) -> Persistence:
    """What the most careful of these streams promises."""
    modes = (stream.options.persistence for stream in streams)
    return reduce(safer, modes, Persistence.FILE_ASYNC)
