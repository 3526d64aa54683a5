"""TLS: the context from the settings' certificate files (SPEC A10), and a ClientHello's ALPN names.

The gate reads the names without taking part in the handshake.
"""

from __future__ import annotations

import ssl

from nexo.client.certificates import checked_ca, load_chain
from nexo.config import Settings
from nexo.dialects.nexo.dialect import ALPN_NAMES
from nexo.errors import ConfigError, InvalidOption, ProtocolError
from nexo.protocol.frames import FieldReader

_RECORD_HEADER = 5
_HANDSHAKE_HEADER = 4
_VERSION_AND_RANDOM = 34
_ALPN = 16


def server_context(settings: Settings) -> ssl.SSLContext | None:
    """The context to accept connections with, or None while TLS is off."""
    if settings.tls_cert is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.set_alpn_protocols(list(ALPN_NAMES))
    key = ("tls_key", settings.tls_key) if settings.tls_key else None
    try:
        load_chain(context, ("tls_cert", settings.tls_cert), key, "tls_key")
        if settings.tls_client_ca is not None:
            context.load_verify_locations(checked_ca("tls_client_ca", settings.tls_client_ca))
            context.verify_mode = ssl.CERT_REQUIRED
    except InvalidOption as error:
        raise ConfigError(error.message) from None
    except ssl.SSLError as error:
        raise ConfigError(f"tls_client_ca = {settings.tls_client_ca}: {error}") from None
    return context


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
