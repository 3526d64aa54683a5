"""What a use case's ``done`` does in this dialect: send the result, or the error, as the reply."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nexo.errors import NexoError
from nexo.protocol.messages import pack
from nexo.services.connection import Done, T
from nexo.services.service import Peer


def _itself(result: Any) -> Any:
    return result


def reply_ok(peer: Peer, request_id: int) -> Done[None]:
    """Reply OK."""

    def done(error: NexoError | None) -> None:
        if error is None:
            peer.ok(request_id)
        else:
            peer.fail(request_id, error)

    return done


def reply_packed(peer: Peer, request_id: int, encode: Callable[[T], Any] = _itself) -> Done[T]:
    """Reply with the message that ``encode`` makes of the result."""

    def done(result: T | NexoError) -> None:
        if isinstance(result, NexoError):
            peer.fail(request_id, result)
        else:
            peer.data(request_id, pack(encode(result)))

    return done
