"""TLS for both ports, from the settings' certificate files (SPEC A10)."""

from __future__ import annotations

import ssl

from nexo.config import Settings
from nexo.errors import ConfigError
from nexo.model import Broker


def server_context(settings: Settings) -> ssl.SSLContext | None:
    """The context to accept connections with, or None while TLS is off."""
    if settings.tls_cert is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.set_alpn_protocols([f"nexo-{broker.label}" for broker in Broker])
    try:
        context.load_cert_chain(settings.tls_cert, settings.tls_key)
        if settings.tls_client_ca is not None:
            context.load_verify_locations(settings.tls_client_ca)
            context.verify_mode = ssl.CERT_REQUIRED
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"tls_cert, tls_key or tls_client_ca cannot be used: {error}") from None
    return context
