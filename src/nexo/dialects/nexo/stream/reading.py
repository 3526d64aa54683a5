"""Requests of readers without a group: by offset, by time, by key."""

from __future__ import annotations

from nexo.dialects.nexo.handlers import Handler, Peer
from nexo.dialects.nexo.replies import reply_data
from nexo.errors import NexoError
from nexo.protocol import stream as wire
from nexo.protocol.ops import Op
from nexo.services.stream.keyed import Keyed, KeyedRecord, StatePage
from nexo.services.stream.reading import ReadFrom, Reading, RecordSlice


class ReadingRequests:
    """S_READ, S_READ_MANY and S_OFFSETS_AT."""

    def __init__(self, reading: Reading) -> None:
        self._reading = reading
        self.handlers: dict[int, Handler] = {
            Op.S_READ: self.read,
            Op.S_READ_MANY: self.read_many,
            Op.S_OFFSETS_AT: self.offsets_at,
        }

    def read(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        """Batches from an offset on; wait for some at the end."""
        ask = wire.unpack(wire.Read, payload)

        def done(found: list[RecordSlice] | NexoError) -> None:
            if isinstance(found, NexoError):
                peer.fail(request_id, found)
            else:
                [(*head, entries)] = found
                peer.data(request_id, wire.pack_headed(wire.ReadReply(*head)), *entries)

        place = ReadFrom(ask.stream, ask.partition, ask.offset, ask.created_ms)
        self._reading.read(peer, request_id, [place], done, ask.max_bytes, ask.wait_ms)

    def read_many(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        """Batches from several places, each getting its share; wait for some."""
        ask = wire.unpack(wire.ReadMany, payload)

        def done(found: list[RecordSlice] | NexoError) -> None:
            if isinstance(found, NexoError):
                peer.fail(request_id, found)
                return
            heads = [each[:3] for each in found]
            batches = [number for number, each in enumerate(found) for _ in each.entries]
            head = wire.pack_headed(wire.ReadManyReply(heads, batches))
            peer.data(request_id, head, *[entry for each in found for entry in each.entries])

        places = [ReadFrom(*place, ask.created_ms.get(place[0], 0)) for place in ask.places]
        self._reading.read(peer, request_id, places, done, ask.max_bytes, ask.wait_ms)

    def offsets_at(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        """Find a time in every partition."""
        ask = wire.unpack(wire.OffsetsAt, payload)
        done = reply_data(peer, request_id, wire.pack)
        self._reading.offsets_at(peer, ask.stream, ask.time_ms, done)


class KeyRequests:
    """S_GET, S_STATE and S_COMPACT."""

    def __init__(self, keyed: Keyed) -> None:
        self._keyed = keyed
        self.handlers: dict[int, Handler] = {
            Op.S_GET: self.get,
            Op.S_STATE: self.state,
            Op.S_COMPACT: self.compact,
        }

    def get(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        """The newest record of a key, or NULL."""
        ask = wire.unpack(wire.Get, payload)

        def done(found: KeyedRecord | NexoError | None) -> None:
            if isinstance(found, NexoError):
                peer.fail(request_id, found)
            elif found is None:
                peer.null(request_id)
            else:
                peer.data(request_id, wire.pack_headed(found.partition), *found.parts)

        self._keyed.get(peer, ask.stream, ask.key, done)

    def state(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        """The newest record of every key, a page at a time."""
        ask = wire.unpack(wire.StateAsk, payload)

        def done(page: StatePage | NexoError) -> None:
            if isinstance(page, NexoError):
                peer.fail(request_id, page)
            else:
                head = wire.StateReply(page.partitions, page.following)
                peer.data(request_id, wire.pack_headed(head), *page.parts)

        start = ask.partition, ask.offset
        self._keyed.state(peer, ask.stream, start, ask.max_bytes, done)

    def compact(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        """Compact a stream now."""
        name = wire.unpack(wire.StreamName, payload).stream
        self._keyed.compact(peer, name, reply_data(peer, request_id, wire.pack))
