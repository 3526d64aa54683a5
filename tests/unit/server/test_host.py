"""Connections whose hand-over is given up, at a limit or by a stop (findings F11, G3)."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

import pytest
import uvloop

from nexo.config import Settings
from nexo.model import Broker
from nexo.server.host import Host
from tests.memory_files import MemoryFiles

LOOPS = pytest.mark.parametrize("make", [asyncio.new_event_loop, uvloop.new_event_loop])


def pair() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = socket.create_connection(listener.getsockname())
        return client, listener.accept()[0]


async def stop_after(turns: int) -> None:
    """A stop so many turns of the loop after a connection arrived."""
    host = Host(Settings(), MemoryFiles, [Broker.STORE])
    host.open()
    client, accepted = pair()
    with client:
        host.adopt(accepted, "nexo")
        for _ in range(turns):
            await asyncio.sleep(0)
        client.shutdown(socket.SHUT_WR)
        assert await host.close()
        assert not host.sessions


@LOOPS
@pytest.mark.parametrize("turns", range(5))
def test_a_stop_meets_a_connection_that_is_being_handed_over(
    make: Callable[[], asyncio.AbstractEventLoop], turns: int
) -> None:
    loop = make()
    try:
        loop.run_until_complete(stop_after(turns))
    finally:
        loop.close()
