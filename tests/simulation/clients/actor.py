"""What all actors have in common."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any

from nexo.errors import NexoError
from nexo.model import Broker
from tests.simulation.oracle.outcomes import Outcome, outcome

if TYPE_CHECKING:
    from nexo.client._async.client import AsyncClient
    from tests.simulation.system import System


class Actor:
    """Does one thing after another until the faults are over; then it is asked to `check`."""

    think_s = (0.0, 0.3)
    """Pauses between two actions."""
    broker: Broker | None = None
    """Whose acknowledgements it sees, if it is one broker's."""

    def __init__(self, system: System, name: str, client: AsyncClient) -> None:
        self.system = system
        self.world = system.world
        self.name = name
        self.client = client
        self.chance = self.world.random(f"actor {name}")
        self.ops = 0

    async def run(self) -> None:
        await self.until_served(self.begin)
        while not self.system.is_quiet:
            await self.act()
            await asyncio.sleep(self.chance.uniform(*self.think_s))

    async def begin(self) -> None:
        """Create what it needs; called until it succeeds."""

    async def act(self) -> None:
        """One action."""

    async def check(self) -> None:
        """Read everything back, once it is quiet; errors here are findings."""

    async def attempt(
        self, what: str, work: Awaitable[Any], *, replicated: bool = False
    ) -> Outcome:
        self.ops += 1
        asked_s = self.world.now_s
        ended = await outcome(self.world, f"{self.name} {what}", work, replicated=replicated)
        if ended.ok:
            self.system.acknowledged(self, asked_s)
        return ended

    async def until_served(self, work: Any, within_s: float = 1e9) -> Any:
        """Call ``work`` until it is answered."""
        until_s = self.world.now_s + within_s
        while True:
            try:
                return await work()
            except NexoError as error:
                if self.world.now_s > until_s:
                    self.world.found("served again", f"{self.name}: {error!r} when all was quiet")
                    raise
                await asyncio.sleep(0.5)
