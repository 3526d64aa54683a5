"""Probes: what they are told, and that nobody can hold them up (SPEC O4)."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator

import pytest

from nexo import limits
from nexo.server.processes.health import HealthServer, ServerState


class Probed:
    """A health server of made-up brokers."""

    def __init__(self) -> None:
        self.brokers = {"store": True, "queue": True}
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.server = HealthServer(self._listener, lambda: self.brokers)

    async def get(self, path: str, method: str = "GET") -> tuple[int, str]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(f"{method} {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        reply = (await reader.read()).decode()
        writer.close()
        head, _, body = reply.partition("\r\n\r\n")
        return int(head.split()[1]), body


@pytest.fixture
async def probed() -> AsyncIterator[Probed]:
    probed = Probed()
    await probed.server.open()
    yield probed
    probed.server.close()


async def test_ready_only_while_every_broker_serves(probed: Probed) -> None:
    assert (await probed.get("/ready"))[0] == 503  # still recovering
    assert (await probed.get("/health"))[0] == 200
    probed.server.state = ServerState.SERVING
    assert (await probed.get("/ready"))[0] == 200
    probed.brokers["queue"] = False
    status, body = await probed.get("/ready")
    assert status == 503
    assert '"queue": false' in body
    probed.brokers["queue"] = True
    probed.server.state = ServerState.DRAINING
    status, body = await probed.get("/ready")
    assert (status, '"draining"' in body) == (503, True)


async def test_other_paths_and_methods_are_refused(probed: Probed) -> None:
    assert (await probed.get("/metrics"))[0] == 404
    assert (await probed.get("/ready", "POST"))[0] == 405
    assert (await probed.get("/health?x=1", "HEAD")) == (200, "")


async def test_a_request_without_an_end_is_dropped(
    probed: Probed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "PROBE_S", 0.01)
    reader, writer = await asyncio.open_connection("127.0.0.1", probed.port)
    writer.write(b"GET /health HT")
    with contextlib.suppress(ConnectionResetError):
        assert await reader.read() == b""
    writer.close()
    reader, writer = await asyncio.open_connection("127.0.0.1", probed.port)
    writer.write(b"GET /" + b"a" * (2 * limits.PROBE_BYTES))
    with contextlib.suppress(ConnectionResetError):
        assert await reader.read() == b""
    writer.close()


async def test_silent_probes_do_not_keep_others_out(
    probed: Probed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "PROBES", 4)
    silent = [await asyncio.open_connection("127.0.0.1", probed.port) for _ in range(10)]
    assert (await probed.get("/health"))[0] == 200
    for _, writer in silent:
        writer.close()
