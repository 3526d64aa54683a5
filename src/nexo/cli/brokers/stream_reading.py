"""Reading a stream's partitions side by side, without a group."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import TYPE_CHECKING, Any

from nexo.cli import output
from nexo.client._sync.requests import request
from nexo.client.stream_records import Record, batches_in
from nexo.errors import InvalidOption, OffsetOutOfRange
from nexo.model import Broker
from nexo.protocol import stream as wire
from nexo.protocol.ops import Op

if TYPE_CHECKING:
    from nexo import Client

_READ_BYTES = 1024**2
_GRACE_S = 30.0


class PartitionsReader:
    """Reads some partitions of a stream side by side."""

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


def positions(
    client: Client, stream: str, place: wire.StartPosition | datetime, *, exact: bool = False
) -> dict[int, int]:
    """The offset in each partition that a place stands for, always within what exists.

    A given offset outside of that is an error if ``exact``, else a note. `InvalidOption` for a
    partition that does not exist.
    """
    parts = client.stream(stream).info().partitions
    if isinstance(place, dict):
        _check_there(place, len(parts))
    given = place
    if isinstance(place, datetime):
        ask = wire.OffsetsAt(stream=stream, time_ms=int(place.timestamp() * 1000))
        call = client.link(Broker.STREAM).call
        place = dict(enumerate(request(call, Op.S_OFFSETS_AT, ask, list[int])))
    found = {number: _start(part, number, place) for number, part in enumerate(parts)}
    for number, part in enumerate(parts):
        wanted = given.get(number) if isinstance(given, dict) else given
        if isinstance(wanted, int) and wanted != found[number]:
            text = (
                f"offset {wanted} is outside partition {number} of stream {stream!r}, "
                f"which takes {part.start_offset}..{part.stable_offset}"
            )
            if exact:
                raise OffsetOutOfRange(text)
            output.note(f"{text}; starting at the nearest offset")
    return found


def last_positions(client: Client, stream: str, count: int) -> dict[int, int]:
    """The offset ``count`` before the end of each partition."""
    parts = client.stream(stream).info().partitions
    return {
        number: max(part.start_offset, part.stable_offset - count)
        for number, part in enumerate(parts)
    }


def only(found: dict[int, int], partition: int | None) -> dict[int, int]:
    """The positions of one partition, or of all."""
    if partition is None:
        return found
    _check_there([partition], len(found))
    return {partition: found[partition]}


def _check_there(partitions: Iterable[int], count: int) -> None:
    for number in partitions:
        if not 0 <= number < count:
            raise InvalidOption(f"partition {number} does not exist: there are {count}, from 0")


def _start(part: wire.PartitionInfo, number: int, place: wire.StartPosition) -> int:
    match place:
        case "beginning":
            return part.start_offset
        case "end":
            return part.stable_offset
        case dict():
            place = place.get(number, part.stable_offset)
    assert isinstance(place, int)
    return min(max(place, part.start_offset), part.stable_offset)
