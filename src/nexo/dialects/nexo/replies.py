"""Callbacks that send a use case's result, or its error, as the reply."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from nexo.dialects.nexo.handlers import Peer
from nexo.errors import NexoError
from nexo.model import Buffer
from nexo.protocol.messages import pack
from nexo.services.connection import Done

T = TypeVar("T")


def reply_ok(peer: Peer, request_id: int) -> Done[Any]:
    """Reply OK whatever the result."""

    def done(result: object) -> None:
        if isinstance(result, NexoError):
            peer.fail(request_id, result)
        else:
            peer.ok(request_id)

    return done


def reply_data(peer: Peer, request_id: int, encode: Callable[[T], Buffer]) -> Done[T]:
    """Reply with the result encoded by ``encode``."""

    def done(result: T | NexoError) -> None:
        if isinstance(result, NexoError):
            peer.fail(request_id, result)
        else:
            peer.data(request_id, encode(result))

    return done


def reply_packed(
    peer: Peer, request_id: int, encode: Callable[[T], Any] = lambda result: result
) -> Done[T]:
    """Reply with the message that ``encode`` makes of the result."""
    return reply_data(peer, request_id, lambda result: pack(encode(result)))
