"""What a response frame means to the caller; shared by both clients."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

from nexo.client.address import Address
from nexo.errors import NexoError, PayloadTooLarge, ProtocolError
from nexo.model import Broker, Buffer
from nexo.protocol.frames import FieldReader, FrameKind, Status, frame, pack_u32, unpack_error
from nexo.protocol.hello import Hello, Welcome, encode_hello
from nexo.protocol.ops import Op

Reply: TypeAlias = bytes | memoryview | None
"""A DATA payload, ``b""`` for OK, None for NULL."""

MAX_REPLY_BYTES = 1 << 30
"""A longer frame than this can only be garbage."""


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
    """What to send back for a frame that is no response: PONG for a PING, else nothing."""
    match kind:
        case FrameKind.PING:
            return frame(FrameKind.PONG, 0, request_id)
        case FrameKind.PONG | FrameKind.PUSH:
            return b""
    raise ProtocolError(f"unknown frame type {kind} from the server")
