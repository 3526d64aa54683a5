# Generated from _async/requests.py by tools/unasync.py; edit that file instead.
"""Requests of one packed message whose reply is one too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar

from nexo.client.replies import Reply
from nexo.errors import NotFound
from nexo.model import Broker
from nexo.protocol.messages import pack, unpack
from nexo.protocol.ops import Op
from nexo.protocol.values import decode_value

T = TypeVar("T")

Send: TypeAlias = Callable[..., Reply]
"""A link's `call` or `repeat`."""


def request(send: Send, op: int, message: object, type_: type[T]) -> T:
    """Send ``message``; returns the reply."""
    return unpack(type_, send(op, pack(message)) or b"")


def status(send: Send, broker: Broker) -> Any:
    """The report of one broker."""
    return decode_value(send(Op.STATUS, bytes((broker,))) or b"\x02{}")


def is_found(send: Send, op: int, payload: bytes) -> bool:
    """Send a request about one thing; False if there is no such thing."""
    try:
        send(op, payload)
    except NotFound:
        return False
    return True
