"""Handlers of our protocol's requests, and the connection they reply through."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeAlias, TypeVar

import msgspec

from nexo.errors import InvalidInput, NexoError
from nexo.model import Buffer
from nexo.model.names import name_of
from nexo.protocol.frames import FieldReader
from nexo.services.connection import Connection

T = TypeVar("T")


class Peer(Connection, Protocol):
    """One client connection as a handler sees it.

    A reply may be sent at any later time; on a closed connection it is dropped.
    """

    said_hello: bool
    """Supports our additions (coded errors, timestamped pushes)."""

    def ok(self, request_id: int) -> None: ...

    def null(self, request_id: int) -> None: ...

    def data(self, request_id: int, *parts: Buffer) -> None:
        """Reply DATA; the parts follow one another on the wire and must not change later."""

    def fail(self, request_id: int, error: NexoError) -> None: ...

    def push(self, frames: Buffer) -> None:
        """Send whole frames that answer no request."""


Handler: TypeAlias = Callable[[Peer, int, memoryview], None]
"""``handler(peer, request_id, payload)``. It replies through ``peer``, now or later, or raises
a `NexoError`, which is sent as the reply. ``payload`` is only valid during the call."""

DirectHandler: TypeAlias = Callable[[Peer, memoryview], bytes | None]
"""``answer(peer, payload)``, for requests that never wait: it returns the reply, None for
NULL and ``b""`` for OK. Cheaper than a `Handler`; otherwise the same.
"""


def name_in(peer: Peer, reader: FieldReader) -> str:
    """The next field as a name of a queue, stream or group.

    The existing client may call them anything; ours say what cannot be a name (SPEC R1).
    """
    text = reader.text()
    return text if peer.said_hello else name_of(text)


def json_options(text: str, kind: type[T], refusal: type[InvalidInput] = InvalidInput) -> T:
    """The options of the existing client's requests."""
    try:
        return msgspec.json.decode(text or "{}", type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise refusal(f"Invalid JSON options: {error}") from None


def handler_of(answer: DirectHandler) -> Handler:

    def handle(peer: Peer, request_id: int, payload: memoryview) -> None:
        reply = answer(peer, payload)
        if reply is None:
            peer.null(request_id)
        elif reply:
            peer.data(request_id, reply)
        else:
            peer.ok(request_id)

    return handle
