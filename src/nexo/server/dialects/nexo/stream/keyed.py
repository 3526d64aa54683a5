"""Streams by key: the newest record of one key, of all keys, and compaction."""

from __future__ import annotations

from nexo.brokers.stream.compaction import compact, is_due
from nexo.brokers.stream.keys import KeyIndex, scan
from nexo.brokers.stream.registry import Stream
from nexo.protocol import stream as wire
from nexo.protocol.frames import Buffer
from nexo.protocol.murmur import partition_of
from nexo.protocol.ops import Op
from nexo.server.dialects.nexo.stream.core import Core
from nexo.server.service import Handler, Peer


class Keyed:
    """S_GET, S_STATE and S_COMPACT."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._indexes: dict[tuple[int, int], KeyIndex] = {}
        self.handlers: dict[int, Handler] = {
            Op.S_GET: self.get,
            Op.S_STATE: self.state,
            Op.S_COMPACT: self.compact,
        }

    def _index(self, stream: Stream, partition: int) -> KeyIndex:
        key = stream.id, partition
        found = self._indexes.get(key)
        if found is None:
            found = self._indexes[key] = KeyIndex(stream.partition(partition))
        return found

    def newest_offset(self, stream: Stream, key: bytes) -> int:
        """Of the newest record of a key; -1 if there is none or it was deleted."""
        index = self._index(stream, partition_of(key, stream.options.partitions))
        index.advance()
        return index.offset_of(key)

    def forget(self, stream: Stream) -> None:
        """The stream is gone."""
        for partition in range(stream.options.partitions):
            self._indexes.pop((stream.id, partition), None)

    def get(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        """The newest record of a key, or NULL."""
        ask = wire.unpack(wire.Get, payload)
        stream = self._core.engine.streams.get(ask.stream)
        partition = partition_of(ask.key, stream.options.partitions)
        found = self._index(stream, partition).find(ask.key)
        if found is None:
            peer.null(request_id)
        else:
            peer.data(request_id, wire.pack_headed(partition), found[0], *found[1])

    def state(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        """The newest record of every key, a portion at a time."""
        ask = wire.unpack(wire.StateAsk, payload)
        stream = self._core.engine.streams.get(ask.stream)
        parts: list[Buffer] = []
        partitions: list[int] = []
        following = self._collect(stream, ask, parts, partitions)
        head = wire.pack_headed(wire.StateReply(partitions, following))
        peer.data(request_id, head, *parts)

    def _collect(
        self, stream: Stream, ask: wire.StateAsk, parts: list[Buffer], partitions: list[int]
    ) -> tuple[int, int] | None:
        size, offset = 0, ask.offset
        for number in range(ask.partition, stream.options.partitions):
            index = self._index(stream, number)
            index.advance()
            for header, entry in scan(stream.partition(number), offset):
                found = index.current(entry)
                if found is not None:
                    parts += [found[0], *found[1]]
                    partitions.append(number)
                    size += len(found[0]) + sum(map(len, found[1]))
                if size >= ask.max_bytes:
                    return number, header.next_offset
            offset = 0
        return None

    def compact(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        """Compact a stream now; deletions go at once."""
        ask = wire.unpack(wire.Name, payload)
        stream = self._core.engine.streams.get(ask.stream)
        freed = sum(
            self._compact(stream, number, keep_deletions=False)
            for number in range(stream.options.partitions)
        )
        peer.data(request_id, wire.pack(freed))

    def compact_if_due(self, stream: Stream) -> None:
        """Compact what has grown dirty enough."""
        for number, partition in enumerate(stream.partitions()):
            if is_due(stream, partition):
                self._compact(stream, number, keep_deletions=True)

    def _compact(self, stream: Stream, number: int, *, keep_deletions: bool) -> int:
        core, partition = self._core, stream.partition(number)
        index = self._index(stream, number)
        freed = compact(stream, partition, index, core.now_ms, keep_deletions=keep_deletions)
        core.engine.checkpoint(stream, number)
        core.end_turn_soon()
        return freed
