"""Requests of readers without a group: by offset, by time, by key."""

from __future__ import annotations

from nexo.dialects.nexo.replying import data
from nexo.errors import NexoError
from nexo.protocol import stream as wire
from nexo.protocol.ops import Op
from nexo.services.service import Handler, Peer
from nexo.services.stream.keyed import Keyed, KeyedRecord, StatePage


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
        name = wire.unpack(wire.Name, payload).stream
        self._keyed.compact(peer, name, data(peer, request_id, wire.pack))
