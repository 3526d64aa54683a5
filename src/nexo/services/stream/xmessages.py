"""A stream as `nexo.xstreams` sees it: messages with ids, added, found, deleted and trimmed."""

from __future__ import annotations

from typing import Any

from nexo.batch import encode_plain
from nexo.brokers.stream.messages import MessageLog
from nexo.brokers.stream.publishing import Placed
from nexo.brokers.stream.registry import Stream
from nexo.brokers.stream.retention import freeable
from nexo.errors import Conflict, InvalidInput, NexoError
from nexo.protocol import xstreams as wire
from nexo.protocol.messages import pack, pack_headed, unpack, unpack_headed
from nexo.protocol.ops import Op
from nexo.protocol.stream import DEFAULT_BYTES
from nexo.protocol.values import ValueType
from nexo.services.service import Handler, Peer
from nexo.services.stream.bounds import check_not_negative
from nexo.services.stream.core import Core
from nexo.services.stream.publish import Publishing

TRIM_STEP = 1_000
"""Messages that automatic trimming lets gather before the log is told to forget them."""
STREAM_OPTIONS = {"retention_ms": 0, "retention_bytes": 0}
"""Of streams made here: their length is what limits them."""


class XMessages:
    """Requests about messages, whoever reads them."""

    def __init__(self, core: Core, publishing: Publishing) -> None:
        self._core = core
        self._publishing = publishing
        self._logs: dict[int, MessageLog] = {}
        self.handlers: dict[int, Handler] = {
            Op.S_X_ADD: self.add,
            Op.S_X_RANGE: self.range,
            Op.S_X_DELETE: self.delete,
            Op.S_X_TRIM: self.trim,
        }

    # -- finding -----------------------------------------------------------------------

    def made(self, name: str) -> Stream:
        """The stream, made if need be; what is made is journalled with this turn."""
        streams = self._core.engine.streams
        if name in streams:
            return streams.get(name)
        self._core.runtime.check_writable()
        return self._core.engine.create(name, STREAM_OPTIONS, self._core.now_ms)

    def log(self, stream: Stream) -> MessageLog:
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
        return found

    def pass_over(self, stream: Stream, log: MessageLog) -> None:
        """Take groups that start behind an id ahead of the stream past what is not above it."""
        for name, group in stream.groups.items():
            if group.claims is None or group.claims.behind is None:
                continue
            position = group.claims.position(0)
            if position < log.end:
                at = log.offset_from(following(group.claims.behind))
                if at > position:
                    group.skip([(0, position, at)])
                    self._core.changed(stream, name, group)

    # -- adding ------------------------------------------------------------------------

    def add(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        """Append one message, stamped here, and trim the stream."""
        ask, value = unpack_headed(wire.Add, payload)
        if not value or value[0] not in tuple(ValueType):
            raise InvalidInput("a message needs a value: a type byte and its content")
        check_not_negative(ask.max_length, "max_length")
        is_new = ask.stream not in self._core.engine.streams
        stream = self.made(ask.stream)
        log = self.log(stream)
        now_ms = max(self._core.now_ms, log.partition.last_ms)
        head, body = encode_plain([bytes(value[1:])], value[0], now_ms)
        entry = bytes(head) + b"".join(body)
        [placed] = self._publishing.store(stream, 0, entry)
        reply = pack((now_ms, placed.offset))
        if is_new:
            self._reply_once_made(stream, placed, len(entry), peer, request_id, reply)
            return
        self._publishing.reply(stream, [placed], len(entry), peer, request_id, reply)
        if log.end - log.front > ask.max_length:
            self._trim(stream, log, ask.max_length, TRIM_STEP)

    def _reply_once_made(
        self,
        stream: Stream,
        placed: Placed,
        size_bytes: int,
        peer: Peer,
        request_id: int,
        reply: bytes,
    ) -> None:
        """A message is not safe before its stream is."""

        def safe(error: NexoError | None) -> None:
            if error is not None:
                peer.fail(request_id, error)
            else:
                self._publishing.reply(stream, [placed], size_bytes, peer, request_id, reply)

        self._core.when_safe(stream.options.persistence, safe)

    # -- finding by id -----------------------------------------------------------------

    def range(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        """A page of messages by id."""
        ask = unpack(wire.RangeAsk, payload)
        log = self.log(self._core.engine.streams.get(ask.stream))
        first = max(log.offset_from(ask.first), ask.offset)
        end = min(log.offset_from(following(ask.last)), log.end)
        entries: list[memoryview] = []
        at = end
        for header, entry in log.entries(first, min(ask.count, end - first), DEFAULT_BYTES):
            entries.append(entry)
            at = header.next_offset
        page = wire.Page(first, end, at if at < end else None)
        peer.data(request_id, pack_headed(page), *entries)

    # -- deleting ----------------------------------------------------------------------

    def delete(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        """Remove messages from the stream and from what groups hold."""
        ask = unpack(wire.Ids, payload)
        stream = self._core.engine.streams.get(ask.stream)
        log, engine = self.log(stream), self._core.engine
        offsets = log.genuine(ask.ids)
        if offsets:
            log.delete(offsets)
            engine.skip(stream, 0, [(first, end) for _, first, end in spans_of(offsets)])
            engine.checkpoint(stream, 0)
            self._core.touched(stream)
        self._reply(peer, request_id, stream, len(offsets))

    def trim(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        """Keep the newest messages."""
        ask = unpack(wire.Trim, payload)
        stream = self._core.engine.streams.get(ask.stream)
        check_not_negative(ask.max_length, "max_length")
        removed = self._trim(stream, self.log(stream), ask.max_length, 1)
        self._reply(peer, request_id, stream, removed)

    def _trim(self, stream: Stream, log: MessageLog, max_length: int, step: int) -> int:
        """Forget the oldest; the log itself does so once ``step`` or more have gathered."""
        self.pass_over(stream, log)
        cut = log.cut(max_length)
        first, removed = log.move_front(cut)
        if cut > first:
            self._tell_groups(stream, first, cut)
        if step == 1 or cut // step > first // step:
            self._free(stream, log, cut)
        return removed

    def _free(self, stream: Stream, log: MessageLog, cut: int) -> None:
        """Have the log forget what it may; what it must keep is gone for messages only."""
        free = min(cut, freeable(stream, 0, log.partition, self._core.now_ms, self._core.hot))
        if free > log.partition.start_offset:
            log.partition.drop_before(free)
        if free < cut:
            self._core.engine.trimmed(stream, cut)

    def _tell_groups(self, stream: Stream, first: int, end: int) -> None:
        for name, group in stream.groups.items():
            if group.claims is not None:
                group.claims.trim((0, first, end))
            else:
                group.skip([(0, first, end)])
            self._core.changed(stream, name, group)
        self._core.touched(stream)

    def _reply(self, peer: Peer, request_id: int, stream: Stream, reply: Any) -> None:
        mode = stream.options.persistence
        self._core.data_when_safe(mode, peer, request_id, pack(reply))


def following(message_id: wire.Id) -> wire.Id:
    """The lowest id above another."""
    return message_id[0], message_id[1] + 1


def spans_of(offsets: list[int]) -> list[tuple[int, int, int]]:
    """Runs of ascending offsets, in partition 0."""
    spans: list[tuple[int, int, int]] = []
    for offset in offsets:
        if spans and spans[-1][2] == offset:
            spans[-1] = 0, spans[-1][1], offset + 1
        else:
            spans.append((0, offset, offset + 1))
    return spans
