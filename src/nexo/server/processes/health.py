"""``/health`` and ``/ready`` on a port of their own, for probes of systemd, Docker and Kubernetes.

They answer whether or not the dashboard runs, and in plain HTTP whether or not the other ports
speak TLS, because a probe has neither a certificate nor a login. A probe learns nothing but
the server's state. One connection carries one request (SPEC O4).
"""

from __future__ import annotations

import asyncio
import enum
import json
import socket
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import cast

from nexo import limits


class ServerState(enum.StrEnum):
    """What the server is doing."""

    STARTING = "starting"
    """Brokers recover their data."""
    SERVING = "serving"
    STANDBY = "standby"
    """Another server leads; this one keeps up with it."""
    DRAINING = "draining"
    """Told to stop: requests in flight are answered, no new connection is accepted."""


class Health:
    """What the probes report. The supervisor sets ``state``."""

    def __init__(self, brokers: Callable[[], Mapping[str, bool]]) -> None:
        """``brokers()`` returns by name whether each broker's process serves."""
        self.state = ServerState.STARTING
        self.replica: Mapping[str, object] | None = None
        """Role, leader and lag of a server that replicates."""
        self._brokers = brokers

    def reply(self, path: str) -> tuple[HTTPStatus, dict[str, object]]:
        """Status and body for a path."""
        if path == "/health":
            return HTTPStatus.OK, {"status": "ok", "state": self.state}
        if path != "/ready":
            return HTTPStatus.NOT_FOUND, {"message": "there is /health and /ready"}
        brokers = self._brokers()
        ready = self.state is ServerState.SERVING and all(brokers.values())
        status = HTTPStatus.OK if ready else HTTPStatus.SERVICE_UNAVAILABLE
        body: dict[str, object] = {"ready": ready, "state": self.state, "brokers": brokers}
        if self.replica is not None:
            body["replica"] = self.replica
        return status, body


class HealthServer:
    """Listens for probes."""

    def __init__(self, health: Health, listener: socket.socket) -> None:
        self._health = health
        self._listener = listener
        self._server: asyncio.Server | None = None
        self._probes: dict[_Probe, None] = {}

    async def open(self) -> None:
        """Start answering."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(self._probe, sock=self._listener)

    def _probe(self) -> _Probe:
        if len(self._probes) >= limits.PROBES:
            next(iter(self._probes)).close()
        probe = _Probe(self._health, lambda: self._probes.pop(probe, None))
        self._probes[probe] = None
        return probe

    def close(self) -> None:
        """Stop answering."""
        if self._server is not None:
            self._server.close()
        for probe in list(self._probes):
            probe.close()


class _Probe(asyncio.Protocol):
    """One connection: one request, one reply, the end."""

    def __init__(self, health: Health, ended: Callable[[], object]) -> None:
        self._health = health
        self._ended = ended
        self._received = bytearray()
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        loop = asyncio.get_running_loop()
        self._deadline = loop.call_later(limits.PROBE_S, self.close)

    def data_received(self, data: bytes) -> None:
        self._received += data
        if b"\r\n\r\n" in self._received:
            self._answer()
        elif len(self._received) > limits.PROBE_BYTES:
            self.close()

    def _answer(self) -> None:
        assert self._transport is not None
        method, _, rest = bytes(self._received).partition(b" ")
        path = rest.partition(b" ")[0].partition(b"?")[0].decode("latin-1")
        if method in (b"GET", b"HEAD"):
            status, body = self._health.reply(path)
        else:
            status, body = HTTPStatus.METHOD_NOT_ALLOWED, {"message": "only GET"}
        content = json.dumps(body).encode() + b"\n"
        head = (
            f"HTTP/1.1 {status.value} {status.phrase}\r\ncontent-type: application/json\r\n"
            f"content-length: {len(content)}\r\ncache-control: no-store\r\n"
            "connection: close\r\n\r\n"
        )
        self._transport.write(head.encode() + (b"" if method == b"HEAD" else content))
        self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._deadline.cancel()
        self._ended()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()
