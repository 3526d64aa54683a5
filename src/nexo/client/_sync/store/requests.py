# Generated from _async/store/requests.py by tools/unasync.py; edit that file instead.
"""How the store's requests are sent, and those about keys of any kind."""

from __future__ import annotations

import math
from typing import Any

from nexo.client._sync.link.link import Link
from nexo.client.checks import positive_millis
from nexo.model.store import MAX_TTL_MS, KeyInfo
from nexo.options.units import Duration
from nexo.protocol import store as wire
from nexo.protocol.messages import pack, unpack
from nexo.protocol.ops import Op

_READS = frozenset({
    Op.KEY_MGET, Op.KEY_EXISTS, Op.KEY_INSPECT, Op.KEY_SCAN, Op.FIELDS_GET, Op.FIELDS_ALL,
    Op.FIELDS_COUNT, Op.LIST_RANGE, Op.LIST_LENGTH, Op.SET_CONTAINS, Op.SET_MEMBERS, Op.SET_SIZE,
})  # fmt: skip
"""Requests that change nothing, and so may be sent again."""


def ask(link: Link, op: Op, command: wire.StoreRequest) -> Any:
    """Send one of the store's requests; returns its decoded reply."""
    send = link.repeat if op in _READS else link.call
    return wire.decode_reply(op, send(op, pack(command)))


def ask_count(link: Link, op: Op, command: wire.StoreRequest) -> int:
    """`ask` for a number of keys or items."""
    send = link.repeat if op in _READS else link.call
    return unpack(int, send(op, pack(command)) or b"")


def ttl_ms(ttl: Duration | None) -> int | None:
    """A TTL as the server takes it."""
    return None if ttl is None else positive_millis(ttl, "ttl", MAX_TTL_MS)


class StoreKeys:
    """Requests about keys of any kind."""

    def __init__(self, link: Link) -> None:
        self._link = link

    def exists(self, key: str) -> bool:
        """Whether there is such a key, of any kind."""
        return ask_count(self._link, Op.KEY_EXISTS, wire.Keys([key])) == 1

    def inspect(self, key: str) -> KeyInfo | None:
        """Kind, items, size and TTL of a key without its value; None if there is none."""
        info: KeyInfo | None = ask(self._link, Op.KEY_INSPECT, wire.OneKey(key))
        return info

    def expire(self, key: str, ttl: Duration) -> bool:
        """Give a key a new TTL; False if there is no such key."""
        done: bool = ask(self._link, Op.KEY_EXPIRE, wire.Expire(key, ttl_ms(ttl) or 0))
        return done

    def ttl(self, key: str) -> float | None:
        """Seconds a key has left, infinity if it never expires, None if there is none."""
        info = self.inspect(key)
        if info is None:
            return None
        return math.inf if info.ttl_ms is None else info.ttl_ms / 1000

    def persist(self, key: str) -> bool:
        """Remove the TTL of a key; False if there is no such key or it had none."""
        done: bool = ask(self._link, Op.KEY_PERSIST, wire.OneKey(key))
        return done

    def delete_many(self, *keys: str) -> int:
        """Delete keys of any kind; returns how many existed."""
        return ask_count(self._link, Op.KEY_DELETE, wire.Keys([*keys]))
