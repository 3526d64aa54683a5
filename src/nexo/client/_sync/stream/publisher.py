"""Sends records, each by itself; the async twin gathers those of one loop turn."""

from __future__ import annotations

import time

from nexo.batch.partitions import partition_of
from nexo.client._sync.link.link import Link
from nexo.client.stream_records import Outgoing, Published
from nexo.errors import PartitionsChanged
from nexo.model.stream import StreamInfo
from nexo.protocol import stream as wire
from nexo.protocol.ops import Op
from nexo.protocol.stream_publishing import PLACE, ROUTE, publish_head, read_places
from nexo.protocol.values import ValueType

_KINDS = [bytes((kind,)) for kind in ValueType]


class RecordPublisher:
    """Publishes to one stream; any thread may call."""

    def __init__(self, link: Link, stream: str) -> None:
        self._link = link
        self._stream = stream
        self._routed = publish_head(stream, ROUTE)
        self.count: int | None = None
        """How many partitions there are, if that is known."""

    def send(
        self, partition: int, kind: int, content: bytes | None, key: bytes | None, headers: bytes
    ) -> Published:
        """Publish one record; returns its place."""
        if content is not None and key is None and not headers:
            return self._add(partition, kind, content)
        records = Outgoing()
        records.add(kind, content, key, headers)
        return self._publish(partition, 0, records)

    def send_keyed(self, kind: int, content: bytes | None, key: bytes, headers: bytes) -> Published:
        """Publish one record where its key belongs."""
        records = Outgoing()
        records.add(kind, content, key, headers)
        while True:
            count = self._counted()
            try:
                return self._publish(partition_of(key, count), count, records)
            except PartitionsChanged:
                self.count = None

    def _counted(self) -> int:
        while (count := self.count) is None:
            ask = wire.pack(wire.StreamName(stream=self._stream))
            reply = self._link.call(Op.S_DESCRIBE, ask)
            self.learned(wire.unpack(StreamInfo, reply or b""))
        return count

    def learned(self, info: StreamInfo) -> None:
        """Note how many partitions there are."""
        self.count = len(info.partitions)

    def _publish(self, partition: int, count: int, records: Outgoing) -> Published:
        head, body = records.encode(int(time.time() * 1000))
        where = publish_head(self._stream, partition, count)
        reply = self._link.call(Op.S_PUBLISH, where, head, *body)
        found, offset, _ = next(read_places(reply or b""))
        return Published(found, offset)

    def _add(self, partition: int, kind: int, content: bytes) -> Published:
        """A plain record: the broker makes the batch, which is quicker for one."""
        where = self._routed if partition == ROUTE else publish_head(self._stream, partition)
        reply = self._link.call(Op.S_ADD, where + _KINDS[kind] + content)
        found, offset, _ = PLACE.unpack(reply or b"")
        return Published(found, offset)
