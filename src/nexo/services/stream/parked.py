"""Parked records on the wire: shown, delivered again, or forgotten (SPEC F3)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from nexo.brokers.stream.delivery import Gathered, gather
from nexo.brokers.stream.groups.flight import Delivery
from nexo.brokers.stream.groups.records import Span
from nexo.brokers.stream.registry import Stream
from nexo.errors import Corrupt, NexoError
from nexo.protocol import stream as wire
from nexo.protocol.ops import Op
from nexo.services.service import Handler, Peer
from nexo.services.stream.bounds import check_limit, check_not_negative
from nexo.services.stream.core import Core
from nexo.services.stream.leasing import Leasing
from nexo.services.stream.replay import Place

_ROW = 1024**2
"""How much is shown of one parked range."""


class Parked:
    """S_PARKED and S_PARKED_SETTLE."""

    def __init__(self, core: Core, leasing: Leasing) -> None:
        self._core = core
        self._leasing = leasing
        self.handlers: dict[int, Handler] = {
            Op.S_PARKED: self.show,
            Op.S_PARKED_SETTLE: self.settle,
        }

    def show(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        """Show parked records."""
        ask = wire.unpack(wire.ParkedAsk, payload)
        check_limit(ask.limit)
        check_not_negative(ask.skip, "skip")
        stream, group = self._core.engine.find(ask.stream, ask.group)
        rows = [
            wire.ParkedInfo(
                r.partition, r.first, r.end, r.parking.deliveries, r.parking.parked_ms,
                r.parking.reason,
            )
            for r in group.parked(ask.limit, ask.skip)
        ]  # fmt: skip
        found = Gathered()

        def reply() -> None:
            head = wire.ParkedList(rows, found.partitions)
            peer.data(request_id, wire.pack_headed(head), *found.parts)

        spans = deque((row.partition, row.first, row.end) for row in rows)
        self._collect(stream, spans, found, reply)

    def _collect(
        self, stream: Stream, spans: deque[Span], found: Gathered, reply: Callable[[], None]
    ) -> None:
        """Find parked records, asking the lake for what the log has dropped.

        Some may be damaged, gone, or out of reach: then only the range is shown.
        """

        def fetched(error: NexoError | None) -> None:
            if error is not None:
                spans.popleft()
            self._collect(stream, spans, found, reply)

        while spans:
            partition, first, end = spans[0]
            first = max(first, self._core.replay.first_offset(stream, partition))
            cold = _add(stream, (partition, first, end), found) if first < end else None
            if cold is not None:
                spans[0] = partition, cold, end
                self._core.replay.fetch(Place(stream, partition, cold), fetched)
                return
            spans.popleft()
        reply()

    def settle(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        """Replay or discard parked records."""
        ask = wire.unpack(wire.ParkedSettle, payload)
        stream, group = self._core.engine.find(ask.stream, ask.group)
        count = group.replay(ask.spans) if ask.verb == "replay" else group.discard(ask.spans)
        self._leasing.moved(stream, ask.group, group)
        mode = stream.options.persistence
        self._core.data_when_safe(mode, peer, request_id, wire.pack(count))


def _add(stream: Stream, span: Span, found: Gathered) -> int | None:
    """Add the records of a range; returns the offset that has to be fetched to go on."""
    try:
        part = gather(stream, [Delivery(*span, 0, 0, 0)], _ROW)
    except Corrupt:
        return None
    found.parts += part.parts
    found.partitions += part.partitions
    return part.cold[0][1] if part.cold else None
