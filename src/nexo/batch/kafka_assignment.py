"""Reads the messages that members of a classic Kafka group send each other, as far as needed.

An assignment is, big-endian: version (2 bytes), a list of topics (4-byte count; each its name with
a 2-byte length, and a list of 4-byte partitions), user data. A subscription has a list of names
instead. The broker passes both on unread; only what people are shown, and whose streams a group
reads, is read here.
"""

from __future__ import annotations

from functools import lru_cache
from struct import Struct, error, unpack_from

_I16, _I32 = Struct(">h"), Struct(">i")
_AFTER_VERSION = 2


def assigned(blob: bytes) -> list[tuple[str, int]]:
    """Topics and partitions of an assignment; none if it is malformed."""
    found: list[tuple[str, int]] = []
    at = _AFTER_VERSION
    try:
        (topics,) = _I32.unpack_from(blob, at) if blob else (0,)
        at += _I32.size
        for _ in range(topics):
            (size,) = _I16.unpack_from(blob, at)
            at += _I16.size
            name = blob[at : at + size].decode()
            at += size
            (count,) = _I32.unpack_from(blob, at)
            at += _I32.size
            found += ((name, index) for index in unpack_from(f">{count}i", blob, at))
            at += count * _I32.size
    except (error, UnicodeDecodeError):
        return []
    return found


@lru_cache(maxsize=1024)
def subscribed(blob: bytes) -> frozenset[str]:
    """The topics of a subscription; none if it is malformed."""
    found: set[str] = set()
    at = _AFTER_VERSION
    try:
        (topics,) = _I32.unpack_from(blob, at) if blob else (0,)
        at += _I32.size
        for _ in range(topics):
            (size,) = _I16.unpack_from(blob, at)
            at += _I16.size
            found.add(blob[at : at + size].decode())
            at += size
    except (error, UnicodeDecodeError):
        return frozenset()
    return frozenset(found)
