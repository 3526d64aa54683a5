"""Sends records, each by itself; the async twin gathers those of one loop turn."""

from __future__ import annotations

import time

from nexo.client._sync.connection import Link
from nexo.client.stream_records import Outgoing, Published
from nexo.protocol.ops import Op
from nexo.protocol.stream import PLACE, places, publish_head
from nexo.protocol.values import ValueType

_KINDS = [bytes((kind,)) for kind in ValueType]


class Publisher:
    """Publishes to one stream; any thread may call."""

    def __init__(self, link: Link, stream: str) -> None:
        self._link = link
        self._stream = stream

    def send(
        self, partition: int, kind: int, content: bytes | None, key: bytes | None, headers: bytes
    ) -> Published:
        """Publish one record; returns its place."""
        if content is not None and key is None and not headers:
            return self._add(partition, kind, content)
        records = Outgoing()
        records.add(kind, content, key, headers)
        head, body = records.encode(int(time.time() * 1000))
        reply = self._link.call(Op.S_PUBLISH, publish_head(self._stream, partition), head, *body)
        found, offset, _ = next(places(reply or b""))
        return Published(found, offset)

    def _add(self, partition: int, kind: int, content: bytes) -> Published:
        """A plain record: the broker makes the batch, which is quicker for one."""
        where = publish_head(self._stream, partition)
        reply = self._link.call(Op.S_ADD, where + _KINDS[kind] + content)
        found, offset, _ = PLACE.unpack(reply or b"")
        return Published(found, offset)
