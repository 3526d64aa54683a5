"""The clients and the real processes of ``nexo serve``: kills, restarts, a graceful stop."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

import nexo
from nexo import errors, testing
from nexo.model import Broker


async def test_clients_survive_a_kill_of_the_whole_server(served: testing.Process) -> None:
    """SPEC A5."""
    with nexo.connect(served.url, timeout=5) as client:
        async with await nexo.connect_async(served.url) as aclient:
            served.kill()
            with pytest.raises(errors.ConnectionLost):
                client.ping()
            with contextlib.suppress(errors.ConnectionLost, TimeoutError):
                await asyncio.wait_for(aclient.ping(), 0.1)
            await asyncio.to_thread(served.start)
            for broker in Broker:
                assert client.ping(broker) > 0
                assert await aclient.ping(broker) > 0


def test_a_stopped_server_exits_cleanly_and_starts_again(served: testing.Process) -> None:
    """SPEC A7."""
    assert served.terminate() == 0
    served.restart()
    with nexo.connect(served.url) as client:
        client.ping()


def test_a_server_that_cannot_start_says_why() -> None:
    process = testing.Process(no_such_setting=1)  # type: ignore[call-arg]
    with pytest.raises(RuntimeError, match="no-such-setting"):
        process.start()
    process.close()


def test_a_server_whose_port_is_taken_does_not_pass_for_started() -> None:  # SPEC K2
    with testing.process(dashboard=False) as first:
        second = testing.Process(port=first.port, dashboard=False)
        try:
            with pytest.raises(RuntimeError, match="cannot listen"):
                second.start()
        finally:
            second.close()
