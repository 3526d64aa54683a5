"""Reading without a group: by partition and offset, or by key."""

from __future__ import annotations

from nexo.brokers.stream.partition import Partition
from nexo.brokers.stream.registry import Stream
from nexo.protocol import stream as wire
from nexo.protocol.frames import Buffer
from nexo.protocol.ops import Op
from nexo.server.dialects.nexo.stream.core import Core
from nexo.server.dialects.nexo.stream.groups import MAX_WAIT_MS
from nexo.server.dialects.nexo.stream.waits import READERS, Wait
from nexo.server.service import Handler, Peer

MAX_READ_BYTES = 16 * 1024**2


class Reading:
    """S_READ."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self.handlers: dict[int, Handler] = {Op.S_READ: self.read}

    def read(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        """Batches from an offset on; wait for some at the end."""
        ask = wire.unpack(wire.Read, payload)
        stream = self._core.engine.streams.get(ask.stream)
        stream.partition(ask.partition).check_offset(ask.offset)
        if self._found(peer, request_id, stream, ask):
            return
        if ask.wait_ms <= 0:
            self._nothing(peer, request_id, stream, ask)
            return
        due_ms = self._core.now_ms + min(ask.wait_ms, MAX_WAIT_MS)
        self._core.waits.add(
            Wait(
                peer,
                request_id,
                (stream.id, READERS),
                due_ms,
                lambda: self._found(peer, request_id, stream, ask),
                lambda: self._nothing(peer, request_id, stream, ask),
            )
        )
        self._core.runtime.wake_at(due_ms)

    def _found(self, peer: Peer, request_id: int, stream: Stream, ask: wire.Read) -> bool:
        partition = stream.partition(ask.partition)
        parts: list[Buffer] = []
        at = ask.offset
        for header, entry in partition.read(at, min(ask.max_bytes, MAX_READ_BYTES)):
            parts.append(entry)
            at = header.next_offset
        if parts:
            peer.data(request_id, _head(partition, at), *parts)
        return bool(parts)

    def _nothing(self, peer: Peer, request_id: int, stream: Stream, ask: wire.Read) -> None:
        partition = stream.partition(ask.partition)
        at = max(ask.offset, partition.stable_offset)
        peer.data(request_id, _head(partition, at))


def _head(partition: Partition, at: int) -> bytes:
    reply = wire.ReadReply(partition.start_offset, partition.stable_offset, at)
    return wire.pack_headed(reply)
