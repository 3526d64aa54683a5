"""Publishing: batches to partitions, replies when they are as safe as their stream promises."""

from __future__ import annotations

from nexo.brokers.stream.publishing import Placed, fitting
from nexo.brokers.stream.registry import Stream
from nexo.errors import NexoError, PayloadTooLarge
from nexo.model import Persistence
from nexo.protocol.frames import Reader
from nexo.protocol.messages import pack
from nexo.protocol.ops import Op
from nexo.protocol.stream_publishing import PLACE, pack_refused, read_publish
from nexo.protocol.stream_transactions import ProducerStart
from nexo.protocol.values import check_value
from nexo.services.service import Handler, Peer
from nexo.services.stream.core import Core, answer


class Publishing:
    """S_PUBLISH, S_PUBLISH_EACH, S_ADD and S_PRODUCER."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self.handlers: dict[int, Handler] = {
            Op.S_PUBLISH: self.publish,
            Op.S_PUBLISH_EACH: self.publish_each,
            Op.S_ADD: self.add,
            Op.S_PRODUCER: self.start_producer,
        }

    def publish(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        """Store one batch."""
        name, partition, count, entry = read_publish(payload)
        stream = self._core.engine.streams.get(name)
        if count:
            stream.check_count(count)
        placed = self.store(stream, partition, entry)
        reply = b"".join([PLACE.pack(p.partition, p.offset, p.count) for p in placed])
        self.reply(stream, placed, len(entry), peer, request_id, reply)

    def publish_each(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        """Store the records of one batch that the stream takes (SPEC E7)."""
        name, partition, count, entry = read_publish(payload)
        stream = self._core.engine.streams.get(name)
        if count:
            stream.check_count(count)
        refused = b""
        try:
            placed = self.store(stream, partition, entry)
        except PayloadTooLarge:
            entry, rows = fitting(stream, entry)
            refused = pack_refused(stream.options.max_message_bytes, rows)
            placed = self.store(stream, partition, entry)
        reply = b"".join([PLACE.pack(p.partition, p.offset, p.count) for p in placed]) + refused
        self.reply(stream, placed, len(entry), peer, request_id, reply)

    def add(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        """Store one plain record; its batch is made here."""
        name, partition, count, value = read_publish(payload)
        stream = self._core.engine.streams.get(name)
        if count:
            stream.check_count(count)
        placed = self.store_one(stream, partition, value)
        reply = PLACE.pack(placed.partition, placed.offset, 1)
        self.reply(stream, [placed], len(value), peer, request_id, reply)

    def store_one(self, stream: Stream, partition: int, value: bytes) -> Placed:
        """Append one value, unless producers must hold back."""
        check_value(value)
        core = self._core
        core.runtime.check_writable()
        core.pressure.check()
        return core.engine.publish_one(stream, partition, value[0], value[1:], core.now_ms)

    def store(self, stream: Stream, partition: int, entry: bytes) -> list[Placed]:
        """Append, unless producers must hold back."""
        core = self._core
        core.runtime.check_writable()
        core.pressure.check()
        return core.engine.publish(stream, partition, entry, core.now_ms)

    def reply(
        self,
        stream: Stream,
        placed: list[Placed],
        size_bytes: int,
        peer: Peer,
        request_id: int,
        reply: bytes,
    ) -> None:
        """Answer, and show the records to readers, once they are safe."""
        core = self._core
        core.appended(sum(place.count for place in placed))
        core.granting.written(size_bytes)

        def safe(error: NexoError | None) -> None:
            if error is None:
                core.show(stream, placed)
            answer(peer, request_id, error, reply)

        # Nothing was journalled, so there is no need to wait for the end of the turn.
        core.runtime.committed(core.granting.mode(stream, placed), safe)

    def start_producer(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        """Give out a producer id, durably, so that it is never given out again."""
        name = Reader(payload).text()
        producer, epoch = self._core.engine.start_producer(name)
        reply = pack(ProducerStart(producer, epoch))
        self._core.data_when_safe(Persistence.FILE_SYNC, peer, request_id, reply)
