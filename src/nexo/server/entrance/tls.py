"""TLS for both ports, from the settings' certificate files (SPEC A10)."""

from __future__ import annotations

import ssl

from nexo.client.certificates import checked_ca, load_chain
from nexo.config import Settings
from nexo.dialects.nexo.dialect import ALPN_NAMES
from nexo.errors import ConfigError, InvalidOption


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
