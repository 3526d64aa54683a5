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
_KEPT_BYTES = 4_096
"""Longer subscriptions are read again each time, so that few bytes are kept for them."""


def assigned(blob: bytes) -> list[tuple[str, int]]:
    """Topics and partitions of an assignment; none if it is malformed."""
    found: list[tuple[str, int]] = []
    at = _AFTER_VERSION
    try:
        (topics,) = _I32.unpack_from(blob, at) if blob else (0,)
        at += _I32.size
        for _ in range(topics):
            name, at = _text(blob, at)
            (count,) = _I32.unpack_from(blob, at)
            at += _I32.size
            found += ((name, index) for index in unpack_from(f">{count}i", blob, at))
            at += count * _I32.size
    except (error, UnicodeDecodeError):
        return []
    return found


def subscribed(blob: bytes) -> frozenset[str]:
    """The topics of a subscription; none if it is malformed."""
    return _subscribed(blob) if len(blob) > _KEPT_BYTES else _kept(blob)


def _subscribed(blob: bytes) -> frozenset[str]:
    found: set[str] = set()
    at = _AFTER_VERSION
    try:
        (topics,) = _I32.unpack_from(blob, at) if blob else (0,)
        at += _I32.size
        for _ in range(topics):
            name, at = _text(blob, at)
            found.add(name)
    except (error, UnicodeDecodeError):
        return frozenset()
    return frozenset(found)


_kept = lru_cache(maxsize=1024)(_subscribed)


def _text(blob: bytes, at: int) -> tuple[str, int]:
    """A name, and what follows it; the reader must move on, however many names are announced."""
    (size,) = _I16.unpack_from(blob, at)
    end = at + _I16.size + size
    if size < 1 or end > len(blob):
        raise error("a name is cut short")
    return blob[at + _I16.size : end].decode(), end
