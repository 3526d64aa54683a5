"""Who pushes jobs, and who does them."""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

from nexo.errors import NexoError
from tests.simulation.clients.actor import Actor
from tests.simulation.oracle.outcomes import Outcome
from tests.simulation.oracle.queue import QueueOracle


class QueueActor(Actor):
    """Common to both: the queue and what is known of it."""

    queue_name = "jobs"
    options: ClassVar[dict[str, Any]] = {"visibility_timeout_ms": 4_000, "max_retries": 1_000}

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.oracle: QueueOracle = self.system.shared(
            f"queue {self.queue_name}", lambda: QueueOracle(self.world, self.queue_name)
        )
        self.queue = self.client.queue(self.queue_name)

    async def begin(self) -> None:
        await self.queue.create(**self.options)


class Pusher(QueueActor):
    """Pushes numbers, one or several at once."""

    async def act(self) -> None:
        await asyncio.gather(*(self._push() for _ in range(self.chance.choice((1, 1, 1, 4, 12)))))

    async def _push(self) -> None:
        value = self.system.next_number()
        self.oracle.pushing(value)
        padded = {"n": value, "pad": "x" * self.chance.choice((0, 10, 200, 3_000))}
        delay_s = self.chance.choice((0, 0, 0, 0.5, 3))
        priority = self.chance.choice((0, 0, 5))
        work = self.queue.push(padded, delay=delay_s, priority=priority)
        self.oracle.pushed(value, await self.attempt(f"push {value}", work))


class Worker(QueueActor):
    """Pops jobs; acks, nacks, releases or forgets them."""

    think_s = (0.0, 0.2)

    async def act(self) -> None:
        done = self.oracle.finished()
        batch = self.chance.choice((1, 1, 5, 20))
        ended = await self.attempt("pop", self.queue.pop(batch, wait=self.chance.choice((0, 1, 5))))
        if not ended.ok:
            return
        for job in ended.value:
            self.oracle.delivered(job.value["n"], job.id, job.attempt, done)
        if self.chance.random() < 0.2:
            await asyncio.sleep(self.chance.uniform(0, 6))
        for job in ended.value:
            await self._settle(job)

    async def _settle(self, job: Any) -> None:
        value = job.value["n"]
        match self.chance.randrange(12):
            case 0:
                await self.attempt(f"nack {value}", job.nack("chance"))
            case 1:
                await self.attempt(f"release {value}", job.release())
            case 2:
                return
            case _:
                self.oracle.jobs[value].maybe_done = True
                ended = await self.attempt(f"ack {value}", job.ack())
                self._acked(value, job.attempt, ended)

    def _acked(self, value: int, attempt: int, ended: Outcome) -> None:
        job = self.oracle.jobs[value]
        job.maybe_done = job.done
        self.oracle.acked(value, attempt, ended)

    async def check(self) -> None:
        """Drain the queue; whoever comes first does it for all."""
        if not self.system.first(f"drained {self.queue_name}"):
            return
        left: set[int] = set()
        idle_s = 0.0
        while idle_s < 8:
            done = self.oracle.finished()
            jobs = await self.until_served(lambda: self.queue.pop(50, wait=2), 30)
            idle_s = 0.0 if jobs else idle_s + 2
            for job in jobs:
                value = job.value["n"]
                self.oracle.delivered(value, job.id, job.attempt, done)
                left.add(value)
                ended = await self.attempt(f"drain {value}", job.ack())
                if ended.ok:
                    left.discard(value)
                    self._acked(value, job.attempt, ended)
        dead = await self._dead()
        self.oracle.at_end(left, dead)

    async def _dead(self) -> set[int]:
        found: set[int] = set()
        try:
            for job in await self.queue.dlq.peek(10_000):
                found.add(job.value["n"])
        except NexoError as error:
            self.world.found("served again", f"{self.name}: {error!r} when all was quiet")
        return found
