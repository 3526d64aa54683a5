"""Requests of one packed message whose reply is one too."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from nexo.client.replies import Reply
from nexo.errors import NotFound
from nexo.protocol.messages import pack, unpack

T = TypeVar("T")


async def request(
    send: Callable[..., Awaitable[Reply]], op: int, message: object, type_: type[T]
) -> T:
    """Send ``message``; returns the reply. ``send`` is a link's `call`, `ask` or `repeat`."""
    return unpack(type_, await send(op, pack(message)) or b"")


async def is_found(send: Callable[..., Awaitable[Reply]], op: int, payload: bytes) -> bool:
    """Send a request about one thing; False if there is no such thing."""
    try:
        await send(op, payload)
    except NotFound:
        return False
    return True
