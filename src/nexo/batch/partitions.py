"""The partition of a key, also after partitions were added (SPEC E1, E2).

Kafka's murmur2 maps a key to the partition that a Kafka client would pick.

After a growth, records stay in the partition they were written to, while a key may belong to
another one. Whatever asks for the newest record of a key asks all of its *homes*. A record's *era*
says after how many growths it was written, so of two homes the one with the later era has the newer
record, whatever the clocks of its writers said; within an era the timestamp decides.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import gcd

from nexo.model import Buffer

_M = 0x5BD1E995
_SEED = 0x9747B28C
_MASK = 0xFFFFFFFF


def murmur2(data: Buffer) -> int:
    """The 32-bit hash of ``data``, unsigned."""
    whole = len(data) & ~3
    h = (_SEED ^ len(data)) & _MASK
    for at in range(0, whole, 4):
        k = int.from_bytes(data[at : at + 4], "little") * _M & _MASK
        k = (k ^ k >> 24) * _M & _MASK
        h = h * _M & _MASK ^ k
    if whole < len(data):
        h = (h ^ int.from_bytes(data[whole:], "little")) * _M & _MASK
    h = (h ^ h >> 13) * _M & _MASK
    return h ^ h >> 15


def partition_of(key: Buffer, partitions: int) -> int:
    return (murmur2(key) & 0x7FFFFFFF) % partitions


class Growths:
    """For each time that partitions were added: where those that were there ended then."""

    __slots__ = ("ends", "first_transaction")

    def __init__(self, ends: Iterable[list[int]] = ()) -> None:
        self.ends = list(ends)
        self.first_transaction = 0
        """Transactions below this number began before the last growth."""

    def __bool__(self) -> bool:
        return bool(self.ends)

    def counts(self, partitions: int) -> list[int]:
        """The number of partitions at first, after each growth, and so now."""
        return [*map(len, self.ends), partitions]

    def homes(self, key: bytes, partitions: int) -> list[int]:
        """Where the records of a key are: its partition now, and those that it had before."""
        counts = reversed(self.counts(partitions))
        return list(dict.fromkeys(partition_of(key, count) for count in counts))

    def sharing(self, partition: int, partitions: int) -> list[int]:
        """The other partitions that may hold records of this one's keys."""
        step = gcd(*self.counts(partitions))
        found = range(partition % step, partitions, step)
        return [number for number in found if self.ends and number != partition]

    def reached(self, partition: int, ends: Mapping[int, int]) -> int:
        """How far a partition may be used so that no record comes before one of an earlier era.

        ``ends`` says up to where the records of each are there.
        """
        for border in self.ends:
            if any(ends.get(number, 0) < end for number, end in enumerate(border)):
                least = border[partition] if partition < len(border) else 0
                return min(least, ends.get(partition, 0))
        return ends.get(partition, 0)

    def era(self, partition: int, offset: int) -> int:
        """After how many growths a record was written."""
        return sum(partition >= len(ends) or offset >= ends[partition] for ends in self.ends)
