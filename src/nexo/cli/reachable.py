"""Checks at once that a server answers, and says what to do if none does."""

from __future__ import annotations

import socket

from nexo.client.address import parse_url
from nexo.errors import ConnectionLost


def check(url: str | None) -> None:
    """Raise `ConnectionLost` if nothing listens there; a URL that says to wait is not checked."""
    address = parse_url(url)
    if url is not None and "while_down=wait" in url:
        return
    try:
        socket.create_connection((address.host, address.port), address.connect_timeout_s).close()
    except OSError as error:
        reason = error.strerror or str(error)
        raise ConnectionLost(
            f"no server answers at {address} ({reason}): start one with 'nexo serve', "
            "or say where it is with --url or NEXO_URL"
        ) from None
