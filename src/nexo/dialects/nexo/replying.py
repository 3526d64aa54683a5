"""How a use case's answer becomes a reply: the ``done`` that a handler passes along."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from nexo.errors import NexoError
from nexo.protocol.frames import Buffer
from nexo.services.connection import Done
from nexo.services.service import Peer

T = TypeVar("T")


def ok(peer: Peer, request_id: int) -> Done[object]:
    """Reply OK whatever the result."""

    def done(result: object) -> None:
        if isinstance(result, NexoError):
            peer.fail(request_id, result)
        else:
            peer.ok(request_id)

    return done


def data(peer: Peer, request_id: int, encode: Callable[[T], Buffer]) -> Done[T]:
    """Reply with the result as bytes."""

    def done(result: T | NexoError) -> None:
        if isinstance(result, NexoError):
            peer.fail(request_id, result)
        else:
            peer.data(request_id, encode(result))

    return done
