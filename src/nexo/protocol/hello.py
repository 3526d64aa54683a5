"""The first exchange on a connection: who connects, to which broker, with what limits.

Request: ``version u8, broker u8``, then a msgpack map. The broker is at a fixed position,
so that the gate can route the connection without decoding the rest.
"""

from __future__ import annotations

import msgspec

from nexo.errors import ProtocolError
from nexo.model import Broker, Buffer
from nexo.protocol.frames import FieldReader
from nexo.protocol.messages import pack

VERSION = 1


class Hello(msgspec.Struct, frozen=True, omit_defaults=True):
    """A client introduces itself; fields unknown to the server are ignored."""

    client: str = ""
    """A name for logs and the dashboard."""
    user: str | None = None
    password: str | None = None
    token: str | None = None
    said_hello: bool = True
    """Only used on internal links: whether the represented client sent HELLO itself."""
    resends: bool = False
    """Sends a request again that was refused with SHUTTING_DOWN or is unanswered at GOODBYE."""
    address: str | None = None
    """Only used on internal links: the represented client's address, such as a dashboard user's."""
    link: str = ""
    """Only used on internal links: by which the represented client is known if it moves."""


class Welcome(msgspec.Struct, frozen=True, omit_defaults=True):
    """The server's reply; fields unknown to the client are ignored."""

    server: str
    """The server's version."""
    max_payload_bytes: int
    idle_ping_ms: int = 30_000
    """The server pings a client that was silent this long, and drops it after twice this."""
    version: int = VERSION


_decode_hello = msgspec.msgpack.Decoder(Hello).decode
_decode_welcome = msgspec.msgpack.Decoder(Welcome).decode


def encode_hello(broker: Broker, hello: Hello) -> bytes:
    return bytes((VERSION, broker)) + pack(hello)


def decode_hello(payload: Buffer) -> tuple[Broker, Hello]:
    """Which broker a connection is for, and the client's HELLO."""
    reader = FieldReader(payload)
    version, number = reader.u8(), reader.u8()
    if version != VERSION:
        raise ProtocolError(f"protocol version {version} is not supported; use {VERSION}")
    try:
        return Broker(number), _decode_hello(reader.rest())
    except (ValueError, msgspec.DecodeError, RecursionError) as error:
        raise ProtocolError(f"malformed HELLO: {error}") from None


def decode_welcome(payload: Buffer) -> Welcome:
    try:
        return _decode_welcome(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError(f"malformed reply to HELLO: {error}") from None
