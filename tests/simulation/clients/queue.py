"""Who pushes jobs, and who does them."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any, ClassVar

from nexo.model import Broker
from tests.simulation.clients.actor import Actor
from tests.simulation.oracle.outcomes import Outcome
from tests.simulation.oracle.queue import Delivery, QueueOracle


class QueueActor(Actor):
    """Common to both: the queue and what is known of it."""

    broker = Broker.QUEUE

    queue_name = "jobs"
    options: ClassVar[dict[str, Any]] = {"visibility_timeout_ms": 4_000, "max_retries": 1_000}

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.oracle: QueueOracle = self.system.model(
            f"queue {self.queue_name}",
            lambda: QueueOracle(
                self.world,
                self.queue_name,
                replicated=self.options.get("persistence") == "replicated",
            ),
        )
        self.replicated = self.options.get("persistence") == "replicated"
        self.queue = self.client.queue(self.queue_name)

    async def begin(self) -> None:
        await self.queue.create(**self.options)


class Pusher(QueueActor):
    """Pushes numbers, one or several at once."""

    async def act(self) -> None:
        await asyncio.gather(*(self._push() for _ in range(self.chance.choice((1, 1, 1, 4, 12)))))

    async def _push(self) -> None:
        value = self.system.next_number()
        padded = {"n": value, "pad": "x" * self.chance.choice((0, 10, 200, 3_000))}
        delay_s = self.chance.choice((0, 0, 0, 0.5, 3))
        priority = self.chance.choice((0, 0, 5))
        self.oracle.pushing(value, self.world.now_s + delay_s)
        work = self.queue.push(padded, delay=delay_s, priority=priority)
        ended = await self.attempt(f"push {value}", work, replicated=self.replicated)
        self.oracle.pushed(value, ended)


class Worker(QueueActor):
    """Pops jobs; acks, nacks, releases or forgets them."""

    think_s = (0.0, 0.2)

    async def act(self) -> None:
        done, began_s = self.oracle.finished(), self.world.now_s
        self.oracle.clock_was_set |= self.system.clock_was_set
        batch = self.chance.choice((1, 1, 5, 20))
        ended = await self.attempt("pop", self.queue.pop(batch, wait=self.chance.choice((0, 1, 5))))
        if not ended.ok:
            return
        deliveries = [
            self.oracle.delivered(job.value["n"], job.id, began_s, done) for job in ended.value
        ]
        if self.chance.random() < 0.2:
            await asyncio.sleep(self.chance.uniform(0, 6))
        for job, delivery in zip(ended.value, deliveries, strict=True):
            await self._settle(job, delivery)

    async def _settle(self, job: Any, delivery: Delivery) -> None:
        value = job.value["n"]
        match self.chance.randrange(12):
            case 0:
                await self.attempt(f"nack {value}", job.nack("chance"))
            case 1:
                await self.attempt(f"release {value}", job.release())
            case 2:
                return
            case _:
                await self._ack(job, delivery)

    async def _ack(self, job: Any, delivery: Delivery) -> Outcome:
        value, asked_s = job.value["n"], self.world.now_s
        ended = await self.attempt(f"ack {value}", job.ack(), replicated=self.replicated)
        self.oracle.acked(value, delivery, asked_s, ended)
        return ended

    async def check(self) -> None:
        """Drain the queue; whoever comes first does it for all."""
        if not self.system.first(f"drained {self.queue_name}"):
            return
        self.oracle.clock_was_set |= self.system.clock_was_set
        left: set[int] = set()
        idle_s = 0.0
        while idle_s < 8:
            done, began_s = self.oracle.finished(), self.world.now_s
            jobs = await self.until_served(lambda: self.queue.pop(50, wait=2), 30)
            idle_s = 0.0 if jobs else idle_s + 2
            for job in jobs:
                value = job.value["n"]
                delivery = self.oracle.delivered(value, job.id, began_s, done)
                left.add(value)
                if (await self._ack(job, delivery)).ok:
                    left.discard(value)
        left |= await self._all(self.queue.scheduled.list)  # a clock that was set back is late
        self.oracle.at_end(left, await self._all(self.queue.dlq.peek))

    async def _all(self, page: Any) -> set[int]:
        """The values of all pages."""
        found: set[int] = set()
        seen = 0
        while jobs := await self.until_served(partial(page, 500, seen), 30):
            found |= {job.value["n"] for job in jobs}
            seen += len(jobs)
        return found
