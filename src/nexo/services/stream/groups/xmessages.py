"""A stream of `nexo.xstreams`: messages with ids, added, found, deleted and trimmed."""

from __future__ import annotations

from collections.abc import Sequence

from nexo.access.permit import ADMIN, READ, WRITE, permit
from nexo.brokers.stream.cleanup.retention import freeable
from nexo.brokers.stream.messages import MessageLog
from nexo.brokers.stream.registry import OpenStream
from nexo.errors import Conflict
from nexo.model import Broker
from nexo.model.stream import Id, Range, XPage
from nexo.options.described import check_range
from nexo.services.connection import Connection, Done
from nexo.services.stream.core import Core
from nexo.services.stream.publish import Publishing
from nexo.services.stream.reading import REPLY_BYTES

TRIM_STEP = 1_000
"""Messages that automatic trimming collects before the log drops them."""
STREAM_OPTIONS = {"retention_ms": 0, "retention_bytes": 0}
"""Options of streams created here: only their length limits them."""


class XMessages:
    """Use cases on messages, independent of groups."""

    def __init__(self, core: Core, publishing: Publishing) -> None:
        self._core = core
        self._publishing = publishing
        self._logs: dict[int, MessageLog] = {}

    # -- finding -----------------------------------------------------------------------

    def log(self, stream: OpenStream) -> MessageLog:
        """The messages of a stream that can have some."""
        if stream.options.partitions != 1:
            raise Conflict(
                f"stream {stream.name!r} has {stream.options.partitions} partitions: messages "
                f"with ids need a stream with one"
            )
        partition = stream.partition(0)
        found = self._logs.get(stream.id)
        if found is None or found.partition is not partition:
            found = self._logs[stream.id] = MessageLog(partition, stream.front)
            self._catch_up(stream, found)
        return found

    def forget(self, stream: OpenStream) -> None:
        """Let go of a deleted stream."""
        self._logs.pop(stream.id, None)

    def _catch_up(self, stream: OpenStream, log: MessageLog) -> None:
        """Move groups past what the log dropped before a crash kept them from journalling it."""
        self.pass_over(stream, log)
        for name, group in stream.groups.items():
            if group.claims is not None:
                group.claims.trim((0, 0, log.front))
                self._core.changed(stream, name, group)

    def pass_over(self, stream: OpenStream, log: MessageLog) -> None:
        """Have groups skip messages up to the id that they start after, which was not yet used."""
        for name, group in stream.groups.items():
            if group.claims is None or group.claims.after_id is None:
                continue
            position = group.claims.position
            if position < log.end:
                at = log.offset_from(following(group.claims.after_id))
                if at > position:
                    group.skip([(0, position, at)])
                    self._core.changed(stream, name, group)

    # -- adding ------------------------------------------------------------------------

    def add(
        self,
        connection: Connection,
        stream: str,
        value_type: int,
        content: bytes,
        max_length: int,
        done: Done[Id],
    ) -> None:
        """Append one message, stamped here, and trim the stream; answers the message's id."""
        permit(connection.identity, Broker.STREAM, WRITE, stream)
        check_range("max_length", max_length)
        found = self._core.made(stream, STREAM_OPTIONS)
        log = self.log(found)
        placed = self._publishing.store_one(found, 0, value_type, content)
        message_id = log.partition.last_ms, placed.offset
        self._publishing.confirm(found, [placed], len(content), message_id, done)
        if log.end - log.front > max_length and (excess := log.count() - max_length) > 0:
            self._trim(found, log, excess, TRIM_STEP)

    # -- finding by id -----------------------------------------------------------------

    def range(
        self, connection: Connection, stream: str, first: Id, last: Id, count: int, offset: int = 0
    ) -> tuple[XPage, list[memoryview]]:
        """A page of messages between two ids, inclusive, from ``offset`` on, and its entries."""
        log = self.log(self._core.permitted(connection, READ, stream))
        start = max(log.offset_from(first), offset)
        end = min(log.offset_from(following(last)), log.end)
        entries: list[memoryview] = []
        at = end
        for header, entry in log.entries(start, min(count, end - start), REPLY_BYTES):
            entries.append(entry)
            at = header.next_offset
        return XPage(start, end, at if at < end else None), entries

    # -- deleting ----------------------------------------------------------------------

    def delete(
        self, connection: Connection, stream: str, ids: Sequence[Id], done: Done[int]
    ) -> None:
        """Remove messages from the stream and from what groups hold; answers how many."""
        found = self._core.permitted(connection, ADMIN, stream)
        log, engine = self.log(found), self._core.engine
        offsets = log.offsets_of(ids)
        if offsets:
            log.check_deletable(offsets)
            engine.hide(found, 0, [(first, end) for _, first, end in ranges_of(offsets)])
            log.deleted(offsets)
            self._free(found, log, TRIM_STEP)
            self._core.touched(found)
        self._core.done_when_safe(found.options.persistence, done, len(offsets))

    def trim(self, connection: Connection, stream: str, max_length: int, done: Done[int]) -> None:
        """Keep the newest messages; answers how many were removed."""
        found = self._core.permitted(connection, ADMIN, stream)
        check_range("max_length", max_length)
        log = self.log(found)
        removed = max(0, log.count() - max_length)
        self._trim(found, log, removed, 1)
        self._core.done_when_safe(found.options.persistence, done, removed)

    def _trim(self, stream: OpenStream, log: MessageLog, count: int, step: int) -> None:
        """Remove the oldest messages."""
        self.pass_over(stream, log)
        first = log.drop(count)
        if count:
            self._trim_groups(stream, first, log.front)
        self._free(stream, log, step)

    def _free(self, stream: OpenStream, log: MessageLog, step: int) -> None:
        """Drop what precedes the front from the log, once the front has moved by ``step``."""
        front, partition = log.front, log.partition
        if step > 1 and front - max(stream.front, partition.start_offset) < step:
            return
        free = min(front, freeable(stream, 0, partition, self._core.now_ms, self._core.hot))
        if free == partition.next_offset:
            free = log.newest_entry()  # after a crash, ids continue after its time
            self._core.engine.hide(stream, 0, [(free, front)] if free < front else [])
        if free > partition.start_offset:
            partition.drop_before(free)
        if free < front:  # what must be kept is hidden from messages only
            self._core.engine.trimmed(stream, front)

    def _trim_groups(self, stream: OpenStream, first: int, end: int) -> None:
        for name, group in stream.groups.items():
            if group.claims is not None:
                group.claims.trim((0, first, end))
            else:
                group.skip([(0, first, end)])
            self._core.changed(stream, name, group)
        self._core.touched(stream)


def following(message_id: Id) -> Id:
    """The lowest id above another."""
    return message_id[0], message_id[1] + 1


def ranges_of(offsets: list[int]) -> list[Range]:
    """Ascending offsets as ranges of partition 0."""
    ranges: list[Range] = []
    for offset in offsets:
        if ranges and ranges[-1][2] == offset:
            ranges[-1] = 0, ranges[-1][1], offset + 1
        else:
            ranges.append((0, offset, offset + 1))
    return ranges
