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

from nexo import limits


class ServerState(enum.StrEnum):
    """The state of the server."""

    STARTING = "starting"
    """Brokers recover their data."""
    SERVING = "serving"
    STANDBY = "standby"
    """Another server leads; this one keeps up with it."""
    DRAINING = "draining"
    """Asked to stop: requests in flight are answered, no new connection is accepted."""


class HealthServer:
    """Answers probes, if it has a listener. The supervisor sets ``state``."""

    def __init__(
        self, listener: socket.socket | None, brokers: Callable[[], Mapping[str, bool]]
    ) -> None:
        """``brokers()`` returns by name whether each broker's process serves."""
        self.state = ServerState.STARTING
        self.replica: Mapping[str, object] | None = None
        """Role, leader and lag of a server that replicates."""
        self._listener = listener
        self._brokers = brokers
        self._server: asyncio.Server | None = None
        self._probes: dict[asyncio.StreamWriter, None] = {}

    async def open(self) -> None:
        if self._listener is not None:
            self._server = await asyncio.start_server(
                self._serve, sock=self._listener, limit=limits.PROBE_BYTES
            )

    async def _serve(self, reader: asyncio.StreamReader, probe: asyncio.StreamWriter) -> None:
        if len(self._probes) >= limits.PROBES:
            self._drop(next(iter(self._probes)))
        self._probes[probe] = None
        try:
            async with asyncio.timeout(limits.PROBE_S):
                request = await reader.readuntil(b"\r\n\r\n")
                probe.write(self._answer(request))
                probe.close()
                await probe.wait_closed()
        except (OSError, EOFError, asyncio.LimitOverrunError):  # a timeout is an OSError
            pass
        finally:
            self._drop(probe)

    def _answer(self, request: bytes) -> bytes:
        method, _, rest = request.partition(b" ")
        path = rest.partition(b" ")[0].partition(b"?")[0].decode("latin-1")
        if method in (b"GET", b"HEAD"):
            status, body = self._reply(path)
        else:
            status, body = HTTPStatus.METHOD_NOT_ALLOWED, {"message": "only GET"}
        content = json.dumps(body).encode() + b"\n"
        head = (
            f"HTTP/1.1 {status.value} {status.phrase}\r\ncontent-type: application/json\r\n"
            f"content-length: {len(content)}\r\ncache-control: no-store\r\n"
            "connection: close\r\n\r\n"
        )
        return head.encode() + (b"" if method == b"HEAD" else content)

    def _reply(self, path: str) -> tuple[HTTPStatus, dict[str, object]]:
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

    def _drop(self, probe: asyncio.StreamWriter) -> None:
        self._probes.pop(probe, None)
        probe.transport.abort()

    def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for probe in list(self._probes):
            self._drop(probe)
