"""The addresses of a running server, as its users write them."""

from __future__ import annotations

import socket
from dataclasses import dataclass

_LOOPBACK = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}
"""How its own machine reaches a server that listens on every interface."""


@dataclass(frozen=True, slots=True)
class Addresses:
    """The address and ports that a server listens on."""

    host: str
    port: int
    http_port: int | None
    tls: bool = False
    health_port: int | None = None

    @property
    def url(self) -> str:
        """The URL for clients."""
        return f"{'nexos' if self.tls else 'nexo'}://{self._reachable}:{self.port}"

    @property
    def near_url(self) -> str:
        """The URL for processes on this machine, which may not know its name.

        With TLS it is the public URL: certificates are for names.
        """
        loopback = _LOOPBACK.get(self.host)
        return self.url if self.tls or loopback is None else f"nexo://{loopback}:{self.port}"

    @property
    def http_url(self) -> str:
        """The URL of the dashboard and the HTTP API."""
        return f"{'https' if self.tls else 'http'}://{self._reachable}:{self.http_port}"

    @property
    def health_url(self) -> str:
        """The URL of the probes, which are served without TLS."""
        return f"http://{self._reachable}:{self.health_port}"

    @property
    def _reachable(self) -> str:
        """The host to connect to: the machine's name if the server listens on every interface."""
        if self.host in _LOOPBACK:
            return socket.gethostname()
        return f"[{self.host}]" if ":" in self.host else self.host
