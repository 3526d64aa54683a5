"""Reads the ALPN names out of a TLS ClientHello without taking part in the handshake."""

from __future__ import annotations

from nexo.errors import ProtocolError
from nexo.protocol.frames import FieldReader

_RECORD_HEADER = 5
_HANDSHAKE_HEADER = 4
_VERSION_AND_RANDOM = 34
_ALPN = 16


def alpn_names(first: bytes) -> list[str] | None:
    """The protocol names a client offers; empty if none, None if more bytes are needed."""
    if len(first) < _RECORD_HEADER:
        return None
    size = int.from_bytes(first[3:5], "big")
    if len(first) < _RECORD_HEADER + size:
        return None
    try:
        return _names(FieldReader(first[_RECORD_HEADER : _RECORD_HEADER + size]))
    except (ProtocolError, UnicodeDecodeError):
        return []


def _u16(reader: FieldReader) -> int:
    return int.from_bytes(reader.take(2), "big")


def _names(hello: FieldReader) -> list[str]:
    hello.take(_HANDSHAKE_HEADER + _VERSION_AND_RANDOM)
    hello.take(hello.u8())  # session id
    hello.take(_u16(hello))  # cipher suites
    hello.take(hello.u8())  # compression methods
    extensions = FieldReader(hello.take(_u16(hello)))
    while True:
        kind, body = _u16(extensions), extensions.take(_u16(extensions))
        if kind == _ALPN:
            return _name_list(FieldReader(body))


def _name_list(body: FieldReader) -> list[str]:
    left = _u16(body)
    names: list[str] = []
    while left > 0:
        name = body.take(body.u8())
        names.append(str(name, "ascii"))
        left -= 1 + len(name)
    return names
