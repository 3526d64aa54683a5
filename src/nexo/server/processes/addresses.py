"""Where a started server answers, as its users would write it."""

from __future__ import annotations

import socket
from dataclasses import dataclass

_LOOPBACK = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}
"""Where a server that listens everywhere is reached from its own machine."""


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
        """For clients."""
        return f"{'nexos' if self.tls else 'nexo'}://{self._reachable}:{self.port}"

    @property
    def near_url(self) -> str:
        """For processes on this machine, where its name may be unknown.

        With TLS it is the same as for others: a certificate is for a name.
        """
        loopback = _LOOPBACK.get(self.host)
        return self.url if self.tls or loopback is None else f"nexo://{loopback}:{self.port}"

    @property
    def http_url(self) -> str:
        """Of the dashboard and the HTTP API."""
        return f"{'https' if self.tls else 'http'}://{self._reachable}:{self.http_port}"

    @property
    def health_url(self) -> str:
        """Of the probes, which speak no TLS."""
        return f"http://{self._reachable}:{self.health_port}"

    @property
    def _reachable(self) -> str:
        """The host to connect to; one that listens everywhere goes by its machine's name."""
        if self.host in _LOOPBACK:
            return socket.gethostname()
        return f"[{self.host}]" if ":" in self.host else self.host
