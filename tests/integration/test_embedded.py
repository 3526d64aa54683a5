"""The embedded server ends with all its connections (SPEC K2)."""

from __future__ import annotations

import asyncio
import socket
import struct
import warnings

import pytest

import nexo
from nexo.config import Settings
from nexo.server.embedded import EmbeddedServer
from nexo.testing import Server


@pytest.mark.parametrize("how", ["stop", "crash"])
def test_connections_that_were_just_made_end_with_it(how: str) -> None:
    """One that is left would be found by whoever comes next in the process."""
    with warnings.catch_warnings(record=True) as left:
        warnings.simplefilter("always", ResourceWarning)
        for _ in range(10):
            server = Server()
            server.start()
            made = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(20)]
            getattr(server, how)()
            for connection in made:
                with connection:
                    connection.settimeout(20)
                    assert _ended(connection)
            server.close()
    assert not [str(warning.message) for warning in left]


async def test_it_ends_though_a_client_has_just_reset_its_connection() -> None:
    """The system then refuses to end the stream, before the reset was read (SPEC A7)."""
    server = EmbeddedServer(Settings(port=0))
    await server.open()
    async with nexo.AsyncClient(f"nexo://127.0.0.1:{server.port}") as client:
        await client.store.set("k", 1)
        lingering = socket.create_connection(("127.0.0.1", server.port))
        lingering.sendall(b"\x01\xff")
        while len(server.host.sessions) < 2:
            await asyncio.sleep(0)
        lingering.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        lingering.close()  # says RST, and no turn of the loop comes between
        for session in list(server.host.sessions):
            session.dismiss()
        await server.close()
    assert not server.host.sessions


def _ended(connection: socket.socket) -> bool:
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True
