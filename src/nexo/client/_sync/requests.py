# Generated from _async/requests.py by tools/unasync.py; edit that file instead.
"""Requests of one packed message whose reply is one too."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from nexo.client.replies import Reply
from nexo.errors import NotFound
from nexo.protocol.messages import pack, unpack

T = TypeVar("T")


def request(send: Callable[..., Reply], op: int, message: object, type_: type[T]) -> T:
    """Send ``message``; returns the reply. ``send`` is a link's `call`, `ask` or `repeat`."""
    return unpack(type_, send(op, pack(message)) or b"")


def is_found(send: Callable[..., Reply], op: int, payload: bytes) -> bool:
    """Send a request about one thing; False if there is no such thing."""
    try:
        send(op, payload)
    except NotFound:
        return False
    return True
