"""How messages are packed: msgpack, followed by raw bytes if any.

Messages are maps where options may be added later, arrays where every byte counts. Unknown
fields are rejected.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec

from nexo.errors import InvalidInput, InvalidOption, ProtocolError
from nexo.model import Buffer
from nexo.options.refusals import UNWRITABLE, in_words, unwritable
from nexo.protocol.frames import pack_u32, unpack_u32

T = TypeVar("T")

_HEAD_SIZE = 4
_encoder = msgspec.msgpack.Encoder()
_decoders: dict[Any, msgspec.msgpack.Decoder[Any]] = {}


def pack(message: Any) -> bytes:
    try:
        return _encoder.encode(message)
    except UNWRITABLE as error:
        raise unwritable(error) from None


def pack_list(packed: Sequence[bytes]) -> bytes:
    """A list of messages that are packed already."""
    return b"".join((b"\xdd", len(packed).to_bytes(4, "big"), *packed))


def unpack(type_: type[T], payload: Buffer, refusal: type[InvalidInput] = InvalidOption) -> T:
    """The message in ``payload``; a ``refusal`` says what is wrong."""
    decoder = _decoders.get(type_)
    if decoder is None:
        decoder = _decoders[type_] = msgspec.msgpack.Decoder(type_)
    try:
        return decoder.decode(payload)  # type: ignore[no-any-return]
    except msgspec.ValidationError as error:
        raise refusal(in_words(error, type_)) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError(f"request is not msgpack: {error}") from None


def pack_headed(message: Any) -> bytes:
    """A message followed by raw bytes: its length precedes it."""
    raw = pack(message)
    return pack_u32(len(raw)) + raw


def split_headed(payload: Buffer) -> tuple[memoryview, memoryview]:
    """A message's bytes, and the raw bytes after them."""
    view = memoryview(payload)
    if len(view) < _HEAD_SIZE:
        raise ProtocolError("the head is cut short")
    end = _HEAD_SIZE + unpack_u32(view)[0]
    if end > len(view):
        raise ProtocolError("the head runs past the end of the payload")
    return view[_HEAD_SIZE:end], view[end:]


def unpack_headed(type_: type[T], payload: Buffer) -> tuple[T, memoryview]:
    head, rest = split_headed(payload)
    return unpack(type_, head), rest
