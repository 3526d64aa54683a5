"""A stop: connections that are being handed over, and what clients hold (findings F11, G3, T9)."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

import pytest
import uvloop

from nexo import limits
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


async def lending(lent: list[int]) -> float:
    """How long a stop waits when clients hold so much at each look; the last stays."""
    host = Host(Settings(), MemoryFiles, [Broker.QUEUE])
    host.open()
    host.services[Broker.QUEUE].lent = (  # type: ignore[method-assign]
        lambda: lent.pop(0) if len(lent) > 1 else lent[0]
    )
    began_s = asyncio.get_running_loop().time()
    await host.settle()
    waited_s = asyncio.get_running_loop().time() - began_s
    await host.close()
    return waited_s


async def test_a_stop_waits_for_what_clients_hold_as_long_as_they_finish(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """SPEC O3, finding T9: jobs, records and transactions are finished before."""
    monkeypatch.setattr(limits, "IDLE_SETTLING_S", 0.2)
    assert await lending([3, 2, 1, 0]) < limits.SETTLING_S
    monkeypatch.setattr(limits, "SETTLING_S", 0.1)
    assert await lending(list(range(1_000, 0, -1))) > 0.1


async def test_a_stop_does_not_wait_for_those_who_finish_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "SETTLING_S", 600.0)
    monkeypatch.setattr(limits, "IDLE_SETTLING_S", 0.05)
    assert 0.05 < await lending([7]) < 600.0
    assert await lending([0]) < 600.0


async def test_waiting_for_a_slow_disk_is_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    """Finding T27: while a stop waits for a sync, it is not killed."""
    host, waited = Host(Settings(), MemoryFiles, [Broker.QUEUE]), asyncio.Event()
    host.open()

    async def drain() -> None:
        await asyncio.wait_for(waited.wait(), 30)

    monkeypatch.setattr(host._runtimes[Broker.QUEUE], "drain", drain)
    assert await host.close(waited.set)
