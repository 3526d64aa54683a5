"""The frame every message on the wire is wrapped in.

``type u8 · meta u8 · id u32 · length u32 · payload``, big-endian. A request's meta
is its opcode, a response's its status; a response carries its request's id.
"""

from __future__ import annotations

import enum
from struct import Struct
from struct import error as struct_error

from nexo.errors import Corrupt, NexoError, ProtocolError, from_wire
from nexo.model import Buffer

HEADER = Struct(">BBII")
HEADER_SIZE = HEADER.size
_U32 = Struct(">I")
pack_u32 = _U32.pack
unpack_u32 = _U32.unpack_from


class FrameKind(enum.IntEnum):
    """The first byte of a frame."""

    REQUEST = 0x01
    """Meta: the opcode."""
    RESPONSE = 0x02
    """Meta: the status; the id is the request's."""
    PUSH = 0x03
    """A pub/sub message: ``topic str, value``, and more as its meta says; id 0."""
    PING = 0x04
    """Answer with PONG; no payload. Both sides may ask."""
    PONG = 0x05
    """The answer to PING."""
    GOODBYE = 0x06
    """The server ends the connection: what it has not answered by now, it has not run.

    Only for clients that ask for it in HELLO.
    """


class Status(enum.IntEnum):
    """The meta byte of a response."""

    OK = 0x00
    """Done; no payload."""
    ERR = 0x01
    """``str`` message: for clients that never sent HELLO."""
    NULL = 0x02
    """No result; no payload."""
    DATA = 0x03
    """The result."""
    ERR_CODED = 0x04
    """``str`` code, ``str`` message: for clients that sent HELLO.

    For CORRUPT, ``u64, u64`` follow where they are known: the first damaged offset, and where
    reading can continue.
    """


def frame(kind: int, meta: int, request_id: int, payload: Buffer = b"") -> bytes:
    return HEADER.pack(kind, meta, request_id, len(payload)) + payload


def pack_str(text: str) -> bytes:
    """A ``str`` field: u32 length, then UTF-8."""
    raw = text.encode()
    return pack_u32(len(raw)) + raw


def pack_error(error: NexoError) -> bytes:
    """The payload of `Status.ERR_CODED`."""
    payload = pack_str(error.code) + pack_str(error.message)
    if isinstance(error, Corrupt) and error.offset is not None and error.next_offset is not None:
        payload += error.offset.to_bytes(8, "big") + error.next_offset.to_bytes(8, "big")
    return payload


def unpack_error(payload: Buffer) -> NexoError:
    """The error that `pack_error` wrote."""
    reader = FieldReader(payload)
    error = from_wire(reader.text(), reader.text())
    offsets = reader.rest()
    if isinstance(error, Corrupt) and len(offsets) == 2 * 8:
        error.offset = int.from_bytes(offsets[:8], "big")
        error.next_offset = int.from_bytes(offsets[8:], "big")
    return error


def text_at(payload: Buffer, at: int) -> tuple[str, int]:
    """A ``str`` field, and where the next field begins."""
    begin = at + _U32.size
    try:
        end = begin + unpack_u32(payload, at)[0]
        text = str(payload[begin:end], "utf-8")
    except struct_error:
        raise _cut_short(_U32.size) from None
    except UnicodeDecodeError as error:
        raise ProtocolError(f"text field is not UTF-8: {error.reason}") from None
    if end > len(payload):
        raise _cut_short(end - begin)
    return text, end


def _cut_short(size: int) -> ProtocolError:
    return ProtocolError(f"field of {size} bytes runs past the end of the payload")


class FieldReader:
    """Reads fields from the front of a payload; anything missing is a `ProtocolError`."""

    __slots__ = ("_at", "_end", "_view")

    def __init__(self, payload: Buffer) -> None:
        self._view = memoryview(payload)
        self._at = 0
        self._end = len(self._view)

    def take(self, size: int) -> memoryview:
        end = self._at + size
        if end > self._end:
            raise _cut_short(size)
        field = self._view[self._at : end]
        self._at = end
        return field

    def u8(self) -> int:
        return self.take(1)[0]

    def u32(self) -> int:
        return int.from_bytes(self.take(4), "big")

    def u64(self) -> int:
        return int.from_bytes(self.take(8), "big")

    def text(self) -> str:
        """A ``str`` field."""
        text, self._at = text_at(self._view, self._at)
        return text

    def rest(self) -> memoryview:
        return self.take(self._end - self._at)

    def end(self) -> None:
        if self._at != self._end:
            raise ProtocolError(f"{self._end - self._at} extra bytes at the end of the payload")
