"""A program that holds up its event loop, as a debugger or a long calculation does."""

from __future__ import annotations

import asyncio
import time

import pytest
import uvloop

import nexo
from nexo import testing

HELD_UP_S = 0.7


def held_up() -> None:
    """Nothing else runs on this thread meanwhile."""
    end_s = time.monotonic() + HELD_UP_S
    while time.monotonic() < end_s:
        pass


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_a_connection_is_not_silent_while_nobody_listens(
    nexo_server: testing.Server, loop: type[asyncio.AbstractEventLoop]
) -> None:
    """A connection that is given up would release the job."""

    async def work() -> None:
        async with nexo.AsyncClient(f"{nexo_server.url}?ping=250ms") as client:
            queue = await client.queue("work", bytes).create()
            await queue.push(b"job")
            jobs = await queue.pop()
            await asyncio.sleep(0)
            held_up()
            await asyncio.sleep(0.1)
            await jobs.ack()

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(work())
