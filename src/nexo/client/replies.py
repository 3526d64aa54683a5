"""Reads response frames for both clients."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

from nexo.client.address import Address
from nexo.errors import NexoError, PayloadTooLarge, ProtocolError
from nexo.model import Broker, Buffer
from nexo.protocol.frames import (
    HEADER,
    HEADER_SIZE,
    FieldReader,
    FrameKind,
    Status,
    frame,
    pack_u32,
    unpack_error,
)
from nexo.protocol.hello import Hello, Welcome, encode_hello
from nexo.protocol.ops import Op

Reply: TypeAlias = bytes | memoryview | None
"""A DATA payload, ``b""`` for OK, None for NULL."""

MAX_REPLY_BYTES = 1 << 30
"""A longer frame than this can only be garbage."""
MAX_WELCOME_BYTES = 64 * 1024
"""Nor can one that is longer than this before the server has answered HELLO."""
_KINDS = frozenset(map(int, FrameKind))
_SHOWN_BYTES = 12

_HEAD_BYTES = 1_024
"""The most bytes that a joined request takes besides its items."""


def room_bytes(welcome: Welcome | None, wanted: int) -> int:
    """The most bytes of items in a joined request: ``wanted``, or less if the server takes less."""
    return wanted if welcome is None else min(wanted, welcome.max_payload_bytes - _HEAD_BYTES)


def check_sizes(welcome: Welcome | None, sizes: Iterable[int]) -> None:
    """Reject items if one is too large for the server, before any is sent."""
    if welcome is None:
        return
    largest, most = max(sizes, default=0), welcome.max_payload_bytes
    if largest > most:
        raise PayloadTooLarge(f"an item of {largest} bytes is too large: the server takes {most}")


def check_frame(address: Address, frame: Buffer, most: int) -> int:
    """The size of the frame that begins so; `ProtocolError` if it is none of a Nexo server.

    What speaks another protocol is found out at once, instead of waited for.
    """
    kind, _, _, length = HEADER.unpack_from(frame)
    size = HEADER_SIZE + int(length)
    if kind not in _KINDS or size > most:
        begins = bytes(frame[:_SHOWN_BYTES])
        raise ProtocolError(
            f"{address} is not the port of a Nexo server: its answer begins with {begins!r}; "
            "name the TCP port (7654 by default), not the dashboard's"
            if most == MAX_WELCOME_BYTES
            else f"{address} sent {begins!r}, which begins no frame"
        )
    return size


def error_of(status: int, payload: Buffer) -> NexoError:
    """The error that an unsuccessful response reports."""
    match status:
        case Status.ERR_CODED:
            return unpack_error(payload)
        case Status.ERR:
            return NexoError(FieldReader(payload).text())
    return ProtocolError(f"unknown response status {status}")


def hello_frame(address: Address, broker: Broker) -> bytes:
    """The HELLO request that opens a connection; its id is 0, which no call uses."""
    hello = Hello(
        address.client,
        address.user,
        address.password,
        address.token,
        resends=True,
        address=address.caller,
    )
    return frame(FrameKind.REQUEST, Op.HELLO, 0, encode_hello(broker, hello))


def cancel_frame(broker: Broker, request_id: int) -> bytes:
    """Asks the server to answer a waiting request now; has no reply of its own."""
    return frame(FrameKind.REQUEST, Op.CANCEL, 0, bytes((broker,)) + pack_u32(request_id))


def control_answer(kind: int, request_id: int) -> bytes:
    """The answer to a frame that is no response: PONG for a PING, else nothing."""
    match kind:
        case FrameKind.PING:
            return frame(FrameKind.PONG, 0, request_id)
        case FrameKind.PONG | FrameKind.PUSH:
            return b""
    raise ProtocolError(f"unknown frame type {kind} from the server")
