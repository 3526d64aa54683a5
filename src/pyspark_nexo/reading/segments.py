"""Streams straight from a server's files, without its broker; nothing is ever changed.

The server may be running. Then a query sees what the files held when it was planned, up to the
first open transaction. The lake's part of a stream is not included: its table holds it.
"""

from __future__ import annotations

import fcntl
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from nexo.batch import Batch, decode, entries
from nexo.brokers.stream.delivery import first_since
from nexo.brokers.stream.groups.ranges import RangeSet
from nexo.brokers.stream.partition import PartitionCheckpoint
from nexo.brokers.stream.records import Aborted, JournalRecord, StreamSnapshot
from nexo.brokers.stream.registry import OpenStream
from nexo.brokers.stream.state import BrokerState
from nexo.config import Settings
from nexo.errors import InvalidOption, NexoError, OffsetOutOfRange, Unavailable
from nexo.model import Broker, Persistence
from nexo.protocol.stream import PartitionInfo, StreamInfo
from nexo.storage.disk.dry_files import DryFiles
from nexo.storage.header import Flags, parse
from nexo.storage.journal import Journal
from nexo.storage.log import SegmentedLog

_READ_BYTES = 8 * 1024**2
_TRIES = 5
"""A running server may replace its snapshot while it is read."""
_LOCK = "nexo.lock"
_CONTROL, _TRANSACTIONAL = int(Flags.CONTROL), int(Flags.TRANSACTIONAL)
_decode_record = msgspec.msgpack.Decoder(JournalRecord).decode
_decode_snapshot = msgspec.msgpack.Decoder(StreamSnapshot).decode


@dataclass(frozen=True, slots=True)
class LogFiles:
    """One partition's log: what readers may see of it, and the ranges hidden from them."""

    folder: Path
    start: int
    end: int
    size_bytes: int
    hidden: tuple[tuple[int, int], ...]

    def entries(self, first: int, end: int) -> Iterator[memoryview]:
        """The entries that readers may see, from the one that holds ``first`` on."""
        log, hidden = SegmentedLog(DryFiles(), self.folder), RangeSet(self.hidden)
        at = first
        while at < end:
            if at < log.start_offset:
                raise OffsetOutOfRange(f"{self.folder} begins at {log.start_offset}, not at {at}")
            found = log.read(at, _READ_BYTES)
            if not found:
                return  # compaction removed all the rest
            for entry in entries(found):
                header = parse(entry)
                if header.base_offset >= end:
                    return
                at = header.next_offset
                if not header.flags & _CONTROL and at - 1 not in hidden:
                    yield entry

    def offset_at(self, time_ms: int) -> int:
        """The first offset of a record of that time or later; the end if there is none."""
        at = max(SegmentedLog(DryFiles(), self.folder).offset_at(time_ms), self.start)
        for entry in self.entries(at, self.end):
            return min(first_since(entry, time_ms, at), self.end)
        return self.end


@dataclass(frozen=True, slots=True)
class FilesOrigin:
    """A stream in its server's files."""

    stream: str
    created_ms: int
    logs: tuple[LogFiles, ...]

    def describe(self) -> StreamInfo:
        parts = [
            PartitionInfo(log.start, log.end, log.end, log.size_bytes, hot_offset=log.start)
            for log in self.logs
        ]
        return StreamInfo(self.stream, self.created_ms, {}, parts, [])

    def offsets_at(self, time_ms: int) -> list[int]:
        return [log.offset_at(time_ms) for log in self.logs]

    def read(self, partition: int, first: int, end: int) -> Iterator[Batch]:
        """From this machine's disk; `Unavailable` if the files are gone."""
        try:
            yield from map(decode, self.logs[partition].entries(first, end))
        except OSError as error:
            raise Unavailable(f"reading {self.logs[partition].folder} failed: {error}") from None


def open_files(data_dir: Path, stream: str) -> FilesOrigin:
    """A stream of the server whose data folder this is; `NotFound` if it has no such stream."""
    folder = Settings(data_dir=data_dir).folder(Broker.STREAM)
    if not (folder / "journal").is_dir():
        raise InvalidOption(f"dataDir = '{data_dir}': no server has streams there")
    for _ in range(_TRIES - 1):
        try:
            return _Reading(folder, _is_running(data_dir)).stream(stream)
        except (OSError, NexoError):
            if not _is_running(data_dir):
                break
    return _Reading(folder, _is_running(data_dir)).stream(stream)


def _is_running(data_dir: Path) -> bool:
    try:
        with (data_dir / _LOCK).open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except FileNotFoundError:
        return False
    return False


class _Reading:
    """What the journal says of the streams, and which transactions it says are aborted."""

    def __init__(self, folder: Path, running: bool) -> None:
        self._folder = folder
        self._running = running
        self._state = BrokerState(_no_log)
        self._aborted: dict[tuple[int, int], RangeSet] = defaultdict(RangeSet)
        recovery = Journal(DryFiles(), folder / "journal").recover()
        if recovery.snapshot is not None:
            self._state.restore(_decode_snapshot(recovery.snapshot))
        recovery.replay(self._apply)

    def _apply(self, _offset: int, raw: bytes) -> None:
        record = _decode_record(raw)
        self._state.apply(record)
        if isinstance(record, Aborted):
            for number, index, first, end in record.ranges:
                self._aborted[number, index].add(first, end)

    def stream(self, name: str) -> FilesOrigin:
        stream = self._state.streams.get(name)
        found = stream.state(synced=False).checkpoints
        count = stream.options.partitions
        logs = (self._log(stream, i, found.get(i, PartitionCheckpoint())) for i in range(count))
        return FilesOrigin(name, stream.created_ms, tuple(logs))

    def _log(self, stream: OpenStream, index: int, found: PartitionCheckpoint) -> LogFiles:
        folder = self._folder / "streams" / stream.folder / str(index)
        log = SegmentedLog(DryFiles(), folder)
        hidden, committed = RangeSet(found.aborted), RangeSet(found.committed)
        aborted, end = self._aborted[stream.id, index], log.next_offset
        for entry in log.entries(min(max(found.offset, log.start_offset), end)):
            header = parse(entry)
            last = header.next_offset - 1
            if not header.flags & _TRANSACTIONAL or last in committed:
                continue
            if self._running and last not in aborted:
                end = header.base_offset
                break
            hidden.add(header.base_offset, header.next_offset)
        return LogFiles(folder, log.start_offset, end, log.size_bytes, tuple(hidden))


def _no_log(folder: str, partition: int, _persistence: Persistence) -> SegmentedLog:
    raise AssertionError(f"{folder}/{partition}: logs are not opened through the state")
