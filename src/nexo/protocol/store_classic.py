"""The store's requests of the existing client: MAP_SET, MAP_GET and MAP_DEL.

They are consecutive fields; our own requests (`nexo.protocol.store`) are msgpack. Our clients
send these too, since a plain get and set need no more.
"""

from __future__ import annotations

import math
import struct

import msgspec

from nexo.errors import InvalidInput, InvalidOption, ProtocolError
from nexo.model import Buffer
from nexo.model.store import JSON, MAX_KEY_BYTES, TEXT, check_ttl, check_value
from nexo.protocol.frames import pack_u32, unpack_u32

_NO_OPTIONS = pack_u32(0)


class MapSetOptions(msgspec.Struct, forbid_unknown_fields=True):
    """The JSON options of MAP_SET."""

    ttl: float | None = None
    """Seconds."""


_decode_options = msgspec.json.Decoder(MapSetOptions).decode


def encode_map_set(key: str, value: bytes) -> bytes:
    return encode_map_key(key) + _NO_OPTIONS + value


def encode_map_key(key: str) -> bytes:
    """A MAP_GET or MAP_DEL."""
    try:
        raw = key.encode()
    except UnicodeEncodeError as error:
        raise _not_utf8(error) from None
    except AttributeError:
        raise InvalidInput(f"a key is text, not {type(key).__name__}") from None
    return pack_u32(len(raw)) + raw


def _not_utf8(error: UnicodeError) -> InvalidInput:
    return InvalidInput(f"a key, field or pattern is text that UTF-8 can hold: {error}")


def decode_map_set(payload: memoryview) -> tuple[str, memoryview, bytes]:
    """Key, options and value of a MAP_SET."""
    try:
        key_end = 4 + unpack_u32(payload)[0]
        value_at = key_end + 4 + unpack_u32(payload, key_end)[0]
    except struct.error:
        raise ProtocolError("MAP_SET is cut short: it needs key, options and value") from None
    value = payload[value_at:].tobytes()
    if not value or (kind := value[0]) > JSON or (kind == TEXT and not value.isascii()):
        check_value(value)  # only doubtful ones: this is every client's hot path
    return _key(payload[4:key_end].tobytes()), payload[key_end + 4 : value_at], value


def decode_map_key(payload: memoryview) -> str:
    size = len(payload) - 4
    if size < 0 or unpack_u32(payload)[0] != size:
        raise ProtocolError("the request holds more or less than one key")
    return _key(payload.tobytes()[4:])


def _key(raw: bytes) -> str:
    if not 0 < len(raw) <= MAX_KEY_BYTES:
        raise InvalidInput(f"a key of {len(raw)} bytes is not allowed: use 1 to {MAX_KEY_BYTES}")
    try:
        return raw.decode()  # twice as fast as making a str from a memoryview
    except UnicodeDecodeError as error:
        raise _not_utf8(error) from None


def options_ttl_ms(options: Buffer) -> int | None:
    """The TTL in the options of a MAP_SET; None if there is none."""
    if not options:
        return None
    try:
        ttl = _decode_options(options).ttl
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidOption(f"Invalid JSON options: {error}") from None
    return None if ttl is None else ttl_to_ms(ttl)


def ttl_to_ms(seconds: float) -> int:
    """A TTL in whole milliseconds, rounded up so that a short one does not become 0."""
    check_ttl(seconds * 1_000)
    return max(1, math.ceil(round(seconds * 1000, 3)))
