# Generated from ../_async/store_calls.py by tools/unasync.py; edit that file instead.
"""Requests that keys and collections share."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from nexo.client._sync.connection import Link
from nexo.client.checks import Duration, positive_millis
from nexo.errors import DoesNotFit, InvalidInput, ProtocolError
from nexo.protocol import store as wire
from nexo.protocol.frames import Buffer
from nexo.protocol.ops import Op
from nexo.protocol.values import decode_value


def ask(link: Link, op: Op, command: wire.Command) -> Any:
    """Send one of the store's requests; returns its decoded reply."""
    return wire.decode_reply(op, link.call(op, wire.encode_request(command)))


def expire(link: Link, key: str, ttl: Duration) -> bool:
    """Give a key a new life time from now."""
    done: bool = ask(link, Op.KEY_EXPIRE, wire.Expire(key, ttl_ms(ttl) or 0))
    return done


def ttl(link: Link, key: str) -> float | None:
    """Seconds a key has left, infinity if it never expires, None if there is none."""
    info: wire.Info | None = ask(link, Op.KEY_INSPECT, wire.OneKey(key))
    if info is None:
        return None
    return math.inf if info.ttl_ms is None else info.ttl_ms / 1000


def persist(link: Link, key: str) -> bool:
    """Take the life time off a key."""
    done: bool = ask(link, Op.KEY_PERSIST, wire.OneKey(key))
    return done


def delete(link: Link, *keys: str) -> int:
    """Delete keys of any kind; returns how many there were."""
    count: int = ask(link, Op.KEY_DELETE, wire.Keys([*keys]))
    return count


def exists(link: Link, key: str) -> bool:
    """Whether there is such a key."""
    count: int = ask(link, Op.KEY_EXISTS, wire.Keys([key]))
    return count == 1


def ttl_ms(ttl: Duration | None) -> int | None:
    """An optional TTL in milliseconds."""
    return None if ttl is None else positive_millis(ttl, "ttl", wire.MAX_TTL_S * 1_000)


def taken(value: Buffer, type_: Any, done: str) -> Any:
    """A value that is no longer in the store: if it does not fit, the error has it.

    ``done`` says in the error what was changed.
    """
    try:
        return decode_value(value, type_)
    except InvalidInput as error:
        raise DoesNotFit(f"{error}; {done}: see the error's value", value=_as_is(value)) from error


def all_taken(values: Sequence[Buffer], type_: Any, done: str) -> list[Any]:
    """`taken` of several."""
    try:
        return [decode_value(value, type_) for value in values]
    except InvalidInput as error:
        as_they_are = [_as_is(value) for value in values]
        raise DoesNotFit(f"{error}; {done}: see the error's value", value=as_they_are) from error


def _as_is(value: Buffer) -> Any:
    try:
        return decode_value(value)
    except ProtocolError:
        return bytes(value)[1:]
