"""What all parts of the stream service share: the engine, its journal, and when to reply."""

from __future__ import annotations

import logging
from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial, reduce
from typing import Any, TypeVar
from uuid import uuid4

import msgspec

from nexo import limits
from nexo.access.grants import Action
from nexo.access.permit import permit
from nexo.brokers.stream.cleanup.retention import HotTier
from nexo.brokers.stream.engine import StreamEngine
from nexo.brokers.stream.exposed_offsets import Pressure
from nexo.brokers.stream.groups.kafka.model import KeptGroup
from nexo.brokers.stream.groups.shared import SharedGroup
from nexo.brokers.stream.publishing import Placed
from nexo.brokers.stream.records import (
    BUILT_ON,
    Checked,
    JournalRecord,
    RestingProducer,
    StreamSnapshot,
)
from nexo.brokers.stream.registry import OpenStream
from nexo.errors import DiskFailed, DiskFull, NexoError, NotFound, ShuttingDown
from nexo.model import Broker, Persistence, safer
from nexo.services.connection import Connection, Done
from nexo.services.stream.capturing import Capturing
from nexo.services.stream.exposure import ExposureControl, SyncReportingRuntime
from nexo.services.stream.lake import LakeTier
from nexo.services.stream.recovery import jump_ahead, recover_folders
from nexo.services.stream.replay import LakeReplay
from nexo.services.turn import Safe, Turn
from nexo.services.waiting import Wait, WaitingRoom
from nexo.storage.journal import Journal, Loss
from nexo.storage.log import SegmentedLog
from nexo.storage.removal import Removals

log = logging.getLogger("nexo.stream")

T = TypeVar("T")

SNAPSHOT_BYTES = 16 * 1024**2
"""The journal's growth after which a new snapshot of the whole state is written."""

_encode = msgspec.msgpack.Encoder().encode
_decode_record = msgspec.msgpack.Decoder(JournalRecord).decode
_decode_snapshot = msgspec.msgpack.Decoder(StreamSnapshot).decode


def _new_cluster_id() -> str:
    """As Kafka makes them."""
    return urlsafe_b64encode(uuid4().bytes).rstrip(b"=").decode()


class Core:
    """One broker's engine on disk."""

    def __init__(self, runtime: SyncReportingRuntime) -> None:
        settings = runtime.settings
        self.runtime = runtime
        self._folder = runtime.folder / "streams"
        self.waits = WaitingRoom()
        self.winding_down = False
        """The server is about to stop: no more records are leased, no transactions begun."""
        self.engine = StreamEngine(self._open_log, settings.stream_options)
        self.hot = HotTier(settings.hot_ms, settings.hot_messages)
        self.pressure = Pressure(settings.stream_unsynced_bytes)
        self.replay = LakeReplay(LakeTier(settings))
        self.exposure = ExposureControl(runtime, self.pressure)
        self._removals = Removals(runtime.files, self._folder)
        self.started_ms = runtime.clock.now_ms()
        self.journal = Journal(runtime.files, runtime.folder / "journal")
        self._journal_mark = 0
        self.snapshot_bytes = SNAPSHOT_BYTES
        self.on_grown: Callable[[OpenStream], None] = lambda _stream: None
        """Called with a stream when much was written to it."""
        self._saving = self._save_wanted = False
        self._turn: Turn[Core] = Turn(runtime, Core._wake_touched)
        self._touched: dict[int, OpenStream] = {}
        self.unjournalled: set[int] = set()
        """Streams created in this turn: what is published to them waits for the journal."""
        self._capturing: Capturing | None = None
        self.resting: dict[str, RestingProducer] = {}
        """Transactional producers of a door that had nothing open at the last clean stop."""
        self.who_rests: Callable[[], dict[str, RestingProducer]] = dict
        """Asks the door for those of now."""
        self.kept_groups: dict[str, KeptGroup] = {}
        """Kafka's groups with their members at the last clean stop."""
        self.who_is_member: Callable[[], dict[str, KeptGroup]] = dict
        self.losses: list[Loss] = []
        """What the journal lost."""
        self._power_kept = False
        """Whether the machine kept its power since the last start, or since an orderly end."""
        self._unsynced_records = 0

    @property
    def now_ms(self) -> int:
        return self.runtime.clock.now_ms()

    def check_there(self, stream: OpenStream) -> None:
        """Raise `NotFound` if a stream was deleted since it was looked up."""
        if self.engine.streams.numbered(stream.id) is not stream:
            raise NotFound(f"stream {stream.name!r} was deleted")

    def permitted(self, connection: Connection, actions: Sequence[Action], name: str) -> OpenStream:
        """A stream by name; `Forbidden` unless the client may do one of ``actions`` to it."""
        permit(connection.identity, Broker.STREAM, actions, name)
        return self.engine.streams.get(name)

    def made(self, name: str, options: Mapping[str, Any]) -> OpenStream:
        """A stream by name; created with these options, and journalled with this turn, if new.

        Replies about a new stream must wait for `when_appended` or `when_safe`.
        """
        if name in self.engine.streams:
            return self.engine.streams.get(name)
        self.runtime.check_writable()
        stream = self.engine.create(name, options, self.now_ms)
        self.unjournalled.add(stream.id)
        self.end_turn_soon()
        return stream

    def find_or_create(self, name: str) -> OpenStream:
        """`made` with the default options, if the server creates streams on first use."""
        streams = self.engine.streams
        if (found := streams.named(name)) is not None:
            return found
        return (
            self.made(name, {}) if self.runtime.settings.auto_create_streams else streams.get(name)
        )

    def _open_log(self, folder: str, partition: int, persistence: Persistence) -> SegmentedLog:
        return SegmentedLog(
            self.runtime.files,
            self._folder / folder / str(partition),
            segment_bytes=self.runtime.settings.segment_bytes,
            room_ahead=persistence is Persistence.FILE_SYNC,
            power_kept=self._power_kept,
            summed=True,
        )

    # -- life ----------------------------------------------------------------------

    def open(self) -> None:
        """Recover the state; streams recover when they are first used."""
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
            self.runtime.files.remove(self._folder / folder)
        recover_folders(
            self.engine, self.runtime.files, self._folder, self.now_ms, lost=bool(self.losses)
        )
        for tag in self._removals.marks():
            if (stream := self.engine.streams.numbered(int(tag, 16))) is not None:
                self.engine.delete(stream.name, self.now_ms)
            self._unmark_when_safe(tag)
        self.resting, self.kept_groups = self.engine.resting, self.engine.kept_groups
        self._resume()
        if self.runtime.settings.stream_cdc:
            self._open_capture(replayed)

    def _resume(self) -> None:
        """Make sure that no offset is exposed twice, before any is exposed (SPEC E2)."""
        files, ended_well = self.runtime.files, not self.engine.boot_id
        jump_ahead(self.engine, files.boot_id)
        try:
            if not ended_well:
                files.sync_all(self.runtime.folder)
            self.engine.opened(files.boot_id, _new_cluster_id())
            self._append_journal(self.now_ms)
            if len(self.engine.streams):
                self.journal.log.sync()  # otherwise it is synced with the first stream
        except (NexoError, OSError):
            # A failed sync is final: nothing will be acknowledged, but all can be read.
            log.exception("the start could not be made durable")

    def delete(self, name: str, done: Safe) -> OpenStream:
        """Delete a stream; ``done`` is called when that is durable, even on a full disk (I7)."""
        stream = self.engine.delete(name, self.now_ms)
        mode = safer(Persistence.FILE_SYNC, stream.options.persistence)

        def written(error: NexoError | None) -> None:
            if isinstance(error, DiskFull | DiskFailed) and self._mark_deleted(stream):
                done(None)
            elif isinstance(error, DiskFull | DiskFailed):
                self.when_safe(mode, written)
            else:
                if error is None:
                    self._remove_files(stream)
                done(error)

        self.when_safe_or_undone(mode, written)
        return stream

    def _remove_files(self, stream: OpenStream) -> None:
        """Remove a folder that needs no mark: the journal has the deletion."""
        try:
            self.runtime.files.remove(self._folder / stream.folder)
        except (NexoError, OSError) as error:
            log.warning("files of the deleted stream %r are left: %s", stream.name, error)

    def _mark_deleted(self, stream: OpenStream) -> bool:
        """Delete a stream that the journal has no room for; whether the disk allowed it."""
        tag = f"{stream.id:x}"
        try:
            self._removals.mark(self._folder / stream.folder, tag)
        except (NexoError, OSError) as error:
            log.warning("stream %r cannot be deleted yet: %s", stream.name, error)
            return False
        self._unmark_when_safe(tag)
        return True

    def _unmark_when_safe(self, tag: str) -> None:
        def safe(error: NexoError | None) -> None:
            if error is None:
                with suppress(NexoError, OSError):  # the next start does it
                    self._removals.unmark(tag)

        self.when_safe(Persistence.FILE_SYNC, safe)

    def _open_capture(self, replayed: list[tuple[int, JournalRecord]]) -> None:
        """Resume capturing changes, beginning with those that a crash left out."""
        self._capturing = Capturing(self.engine, self.runtime.clock, self._show_when_safe)
        for stream in self._capturing.capture.sources():
            stream.partitions()
            self.touched(stream)
        self._capturing.journalled([] if self._capturing.is_new else replayed)

    def check_lends(self) -> None:
        """Raise `ShuttingDown` once the server is about to stop."""
        if self.winding_down:
            raise ShuttingDown("the server is stopping: it lends no more records")

    def close(self) -> None:
        """Write a snapshot, so that the next start is quick; all logs are synced by now."""
        try:
            self._append_journal(self.now_ms)
        except (NexoError, OSError):
            log.exception("the last changes could not be journalled; the snapshot has them")
        self._turn.close()
        try:
            self.engine.resting = self.who_rests()
            self.engine.kept_groups = self.who_is_member()
            self._save(synced=True)
        except (NexoError, OSError):
            log.exception("the state could not be saved; the journal has what was acknowledged")
        for stream in self.engine.streams:
            stream.close()
            self.runtime.progress()
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
        """Call ``done`` once everything this turn changed is as durable as ``mode`` says.

        The changes stand: if the disk has no room for them, ``done`` waits until there is.
        """
        self._turn.when_safe(self, mode, done)

    def when_safe_or_undone(self, mode: Persistence, done: Safe) -> None:
        """Like `when_safe`, but ``done`` gets a full disk's error at once and undoes the change."""
        self._turn.when_safe_or_undone(self, mode, done)

    def when_appended(self, stream: OpenStream, mode: Persistence, done: Safe) -> None:
        """Call ``done`` once what was appended to a stream's log is as durable as ``mode`` says.

        It waits for the end of the turn, and so for the journal, only if the stream is new.
        """
        if stream.id in self.unjournalled:
            self.when_safe(mode, done)
        else:
            self.runtime.committed(mode, done)

    def done_when_safe(self, mode: Persistence, done: Done[T], result: T) -> None:
        """Call ``done`` with the result once this turn's changes have the durability ``mode``."""
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
        self.unjournalled.clear()
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
        """Wake the requests that wait on the stream at the end of the turn."""
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

    def due_ms(self, wait_ms: int) -> int:
        """When a request that may wait ``wait_ms`` is answered at the latest."""
        return self.runtime.clock.now_ms() + min(wait_ms, limits.STREAM_WAIT_MS)

    def answer_or_wait(self, wait: Wait) -> None:
        """Answer a request now, or when a later event has a result for it."""
        if not self.waits.answer(wait):
            self.wait(wait)

    def wait(self, wait: Wait) -> None:
        """Answer a request that found nothing when a later event has a result for it."""
        if self.waits.wait(wait, self.now_ms):
            self.runtime.wake_at(wait.due_ms)

    def look_again(self, wait: Wait, error: NexoError | None) -> None:
        """Go on with a request that was `ELSEWHERE`."""
        try:
            if self.waits.back(wait, error):
                self.answer_or_wait(wait)
        except NexoError as failure:
            wait.done(failure)

    def changed(self, stream: OpenStream, name: str, group: SharedGroup) -> None:
        """Journal what a group did with this turn."""
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
    """The strictest durability of these streams."""
    modes = (stream.options.persistence for stream in streams)
    return reduce(safer, modes, Persistence.FILE_ASYNC)
