"""Where a started server answers, as its users would write it."""

from __future__ import annotations

import socket
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Addresses:
    """The address and ports that a server listens on."""

    host: str
    port: int
    http_port: int | None
    tls: bool = False

    @property
    def url(self) -> str:
        """For clients."""
        return f"{'nexos' if self.tls else 'nexo'}://{self._reachable}:{self.port}"

    @property
    def http_url(self) -> str:
        """Of the dashboard and the HTTP API."""
        return f"{'https' if self.tls else 'http'}://{self._reachable}:{self.http_port}"

    @property
    def _reachable(self) -> str:
        """The host to connect to; one that listens everywhere goes by its machine's name."""
        if self.host in ("0.0.0.0", "::"):
            return socket.gethostname()
        return f"[{self.host}]" if ":" in self.host else self.host
