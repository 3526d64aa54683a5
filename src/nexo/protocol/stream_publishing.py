"""What publishers and the stream broker say to each other.

==============  ==========================  =================================
opcode          request                     reply
==============  ==========================  =================================
S_PUBLISH       name str, `LANE`, a batch   `PLACE` per partition written
S_PUBLISH_EACH  name str, `LANE`, a batch   `PLACE`, and what was refused
S_ADD           name str, `LANE`, a value   `PLACE`
==============  ==========================  =================================

`LANE` is an i32: -1 to have the broker route by key, or in turn. Else the partition in the low
16 bits and above them the number of partitions the sender went by, 0 if it did not say. If the
stream has another number the answer is `PartitionsChanged` and nothing is stored: describe the
stream, and choose again.

`PLACE` is ``partition u32, offset u64, count u32``: where records went.

S_PUBLISH_EACH is for records that came together by chance, as a client joins those of one loop
turn, and that go to one partition. Those over the stream's limit are left out: the limit, u32,
and the number of each, u32, follow the place of the others. If that is none, it is refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from struct import Struct, error, pack, unpack

from nexo.errors import ProtocolError
from nexo.model import Buffer
from nexo.protocol.frames import pack_str

LANE = Struct(">i")
PLACE = Struct(">IQI")
ROUTE = -1
"""In place of a partition: the broker picks by key, or in turn."""
_COUNT_SHIFT = 16
_PARTITION_MASK = (1 << _COUNT_SHIFT) - 1
_HEAD = Struct(">I")


def publish_head(stream: str, partition: int, count: int = 0) -> bytes:
    """What stands before the batch in S_PUBLISH, and before the value in S_ADD.

    ``count`` is given by those who chose the partition by it.
    """
    return pack_str(stream) + LANE.pack(partition | count << _COUNT_SHIFT)


def read_publish(payload: memoryview) -> tuple[str, int, int, bytes]:
    """The stream's name, the partition, the assumed count or 0, and the batch or value."""
    try:
        at = _HEAD.size + _HEAD.unpack_from(payload)[0]
        (lane,) = LANE.unpack_from(payload, at)
        name = str(payload[_HEAD.size : at], "utf-8")
    except (error, UnicodeDecodeError):
        raise ProtocolError("a publish begins with the stream's name and partition") from None
    rest = bytes(payload[at + LANE.size :])
    if lane <= _PARTITION_MASK:
        return name, lane, 0, rest
    return name, lane & _PARTITION_MASK, lane >> _COUNT_SHIFT, rest


def pack_refused(limit: int, rows: Sequence[int]) -> bytes:
    """What follows the place in a reply to S_PUBLISH_EACH, if records were left out."""
    return pack(f">{1 + len(rows)}I", limit, *rows)


def read_each(payload: Buffer) -> tuple[int, int, int, int, tuple[int, ...]]:
    """The reply to S_PUBLISH_EACH: partition, first offset, count, and limit and number of those
    that were left out."""
    try:
        place = PLACE.unpack_from(payload)
        limit, *rows = unpack(f">{(len(payload) - PLACE.size) // 4}I", payload[PLACE.size :])
    except (error, ValueError):
        raise ProtocolError("reply is cut short") from None
    return *place, limit, tuple(rows)


def read_places(payload: Buffer) -> Iterator[tuple[int, int, int]]:
    """The reply to either: ``partition, offset, count`` each."""
    if len(payload) % PLACE.size:
        raise ProtocolError("reply is cut short")
    return PLACE.iter_unpack(payload)
