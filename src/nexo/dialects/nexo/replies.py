"""Handlers made of use cases, and callbacks that send a result, or its error, as the reply.

A request whose fields are the parameters of its use case needs no handler of its own: the first
field is given by position, the others by name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeAlias, TypeVar

import msgspec

from nexo.dialects.nexo.handlers import Handler, Peer
from nexo.errors import InvalidInput, InvalidOption, NexoError
from nexo.model import Buffer
from nexo.protocol.messages import pack, pack_headed, unpack
from nexo.services.connection import Done

T = TypeVar("T")
ReplyWith: TypeAlias = Callable[[Peer, int], Done[Any]]
"""Makes the callback that answers a request."""


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


def reply_parts(peer: Peer, request_id: int, encode: Callable[[T], Iterable[Buffer]]) -> Done[T]:
    """Reply with the parts that ``encode`` makes of the result."""

    def done(result: T | NexoError) -> None:
        if isinstance(result, NexoError):
            peer.fail(request_id, result)
        else:
            peer.data(request_id, *encode(result))

    return done


def reply_headed(peer: Peer, request_id: int) -> Done[tuple[Any, Iterable[Buffer]]]:
    """Reply with a message and the raw bytes that follow it."""
    return reply_parts(peer, request_id, lambda found: (pack_headed(found[0]), *found[1]))


def calling(
    kind: type[msgspec.Struct],
    use_case: Callable[..., None],
    reply: ReplyWith = reply_packed,
    refusal: type[InvalidInput] = InvalidOption,
) -> Handler:
    """Call a use case that answers through ``done``."""

    def handle(peer: Peer, request_id: int, payload: memoryview) -> None:
        first, others = _fields(unpack(kind, payload, refusal))
        use_case(peer, first, **others, done=reply(peer, request_id))

    return handle


def waiting(
    kind: type[msgspec.Struct], use_case: Callable[..., None], reply: ReplyWith = reply_packed
) -> Handler:
    """Call a use case that may wait, and can be cancelled by the request's number."""

    def handle(peer: Peer, request_id: int, payload: memoryview) -> None:
        first, others = _fields(unpack(kind, payload))
        use_case(peer, request_id, first, **others, done=reply(peer, request_id))

    return handle


def returning(
    kind: type[msgspec.Struct],
    use_case: Callable[..., object],
    reply: ReplyWith = reply_packed,
    refusal: type[InvalidInput] = InvalidOption,
) -> Handler:
    """Call a use case that returns its result."""

    def handle(peer: Peer, request_id: int, payload: memoryview) -> None:
        first, others = _fields(unpack(kind, payload, refusal))
        reply(peer, request_id)(use_case(peer, first, **others))

    return handle


def _fields(message: msgspec.Struct) -> tuple[Any, dict[str, Any]]:
    fields = msgspec.structs.asdict(message)
    return fields.pop(next(iter(fields))), fields
