"""Kafka's murmur2, so that a key maps to the partition a Kafka client would pick (SPEC E2)."""

from __future__ import annotations

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
