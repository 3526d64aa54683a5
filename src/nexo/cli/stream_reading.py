"""Reading a stream's partitions side by side, without a group."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nexo.client.stream_records import Record, batches_in
from nexo.errors import InvalidOption
from nexo.model import Broker
from nexo.protocol import stream as wire
from nexo.protocol.ops import Op

if TYPE_CHECKING:
    from nexo import Client

_READ_BYTES = 1024**2
_GRACE_S = 30.0


class Reader:
    """Goes through some partitions of a stream, taking turns."""

    def __init__(self, client: Client, stream: str, positions: dict[int, int]) -> None:
        self._link = client.link(Broker.STREAM)
        self._stream = stream
        self._positions = positions

    def read(self, wait_s: float = 0.0) -> list[Record[Any]]:
        """The next records, in the order of their times; empty if none came in ``wait_s``."""
        places = [(self._stream, part, offset) for part, offset in self._positions.items()]
        ask = wire.ReadMany(places, _READ_BYTES * len(places), int(wait_s * 1000))
        reply = self._link.call(Op.S_READ_MANY, wire.pack(ask), timeout_s=wait_s + _GRACE_S)
        head, rest = wire.unpack_headed(wire.ReadManyReply, reply or b"")
        found = [
            Record[Any](places[place][1], row, None)
            for place, batch in zip(head.batches, batches_in(rest), strict=True)
            for row in batch.records()
            if row.offset >= places[place][2]
        ]
        for (_, partition, _), (_, _, following) in zip(places, head.heads, strict=True):
            self._positions[partition] = following
        return sorted(found, key=lambda record: record.timestamp_ms)


def start_positions(
    info: wire.StreamInfo, place: wire.Position, partition: int | None = None
) -> dict[int, int]:
    """Where reading begins in each partition, or in one; never outside of what is there."""
    chosen = range(len(info.partitions)) if partition is None else [partition]
    if partition is not None and partition >= len(info.partitions):
        raise InvalidOption(f"{info.name} has {len(info.partitions)} partitions, from 0 on")
    return {part: _start(info.partitions[part], part, place) for part in chosen}


def last_positions(positions: dict[int, int], info: wire.StreamInfo, count: int) -> dict[int, int]:
    """The same partitions, ``count`` offsets before their ends."""
    ends = {part: info.partitions[part] for part in positions}
    return {part: max(end.start_offset, end.stable_offset - count) for part, end in ends.items()}


def _start(part: wire.PartitionInfo, number: int, place: wire.Position) -> int:
    match place:
        case "beginning":
            return part.start_offset
        case "end":
            return part.stable_offset
        case dict():
            place = place.get(number, part.stable_offset)
    assert isinstance(place, int)
    return min(max(place, part.start_offset), part.stable_offset)
