"""Who waits for something, and must be answered as soon as it is there."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

from nexo.errors import NexoError
from tests.simulation.clients.actor import Actor

LATE_S = 1.5
"""An answer this long after what it waits for is too late."""
WAIT_S = 8.0


class WaitingActor(Actor):
    """Waits for one thing, and brings it about itself a little later."""

    think_s = (0.5, 4.0)

    async def act(self) -> None:
        kinds = (self._lock, self._job, self._retry, self._lease, self._result, self._record)
        await self.chance.choice(kinds)()

    async def prompt(
        self,
        what: str,
        wait: Awaitable[Any],
        cause: Callable[[], Awaitable[Any]],
        later_s: float = 0,
    ) -> Any:
        """Wait, bring it about, and see that the answer came within the time from then on."""
        waiter = asyncio.ensure_future(self._answered(wait))
        await asyncio.sleep(self.chance.uniform(0.2, 1.0))
        before = self.system.lives, self.world.troubles
        ended = await self.attempt(what, cause())
        due_s = self.world.now_s + later_s
        answered_s, value = await waiter
        undisturbed = before == (self.system.lives, self.world.troubles)
        if ended.ok and undisturbed and answered_s is not None and answered_s > due_s + LATE_S:
            late_s = answered_s - due_s
            self.world.found("woken", f"{what}: who waited was answered {late_s:.1f} s late")
        return value

    async def _answered(self, wait: Awaitable[Any]) -> tuple[float | None, Any]:
        """When the answer came; None if the wait says nothing, as its connection was lost."""
        before = self.system.lives, self.world.troubles
        try:
            value = await wait
        except NexoError:
            value = None
        if before != (self.system.lives, self.world.troubles):
            return None, None
        return self.world.now_s, value

    # -- what it waits for --------------------------------------------------------------

    async def _lock(self) -> None:
        name = f"{self.name}-{self.chance.randrange(3)}"
        holder, other = self.client.store.lock(name, ttl=60), self.client.store.lock(name, ttl=1)
        if not (await self.attempt("hold", holder.acquire(0))).ok:
            return
        way = self.chance.randrange(4)
        if way == 0:
            await self.prompt("release", other.acquire(WAIT_S), holder.release)
        elif way == 1:
            delete = self.client.store.delete
            await self.prompt("delete", other.acquire(WAIT_S), lambda: delete(name))
        elif way == 2:
            expire = self.client.store.expire
            await self.prompt("expire", other.acquire(WAIT_S), lambda: expire(name, 0.3), 0.3)
        else:
            put = self.client.store.set
            await self.prompt("set", other.acquire(WAIT_S), lambda: put(name, 1, ttl=0.3), 0.3)
        holder._holder = None
        with contextlib.suppress(NexoError):
            await other.release()
            await self.client.store.delete(name)

    async def begin(self) -> None:
        queue = self.client.queue(f"wait-{self.name}")
        await queue.create(visibility_timeout=2, result_ttl=60, backoff="none")
        await self.client.stream(f"wait-{self.name}").create()
        self._queue = queue
        self._stream = self.client.stream(f"wait-{self.name}")

    async def _emptied(self) -> bool:
        return (await self.attempt("purge", self._queue.purge())).ok

    async def _job(self) -> None:
        if not await self._emptied():
            return
        delay_s = self.chance.choice((0.0, 0.0, 1.0))
        push = self._queue.push
        await self._settled(
            await self.prompt(
                "push", self._queue.pop(1, wait=WAIT_S), lambda: push(1, delay=delay_s), delay_s
            )
        )

    async def _settled(self, jobs: Any) -> None:
        with contextlib.suppress(NexoError):
            for job in jobs or ():
                await job.ack()

    async def _popped(self) -> Any:
        """A job that this actor holds; None if something came between."""
        if not await self._emptied() or not (await self.attempt("push", self._queue.push(2))).ok:
            return None
        ended = await self.attempt("pop", self._queue.pop(1, wait=1))
        return ended.value[0] if ended.ok and ended.value else None

    async def _retry(self) -> None:
        if (job := await self._popped()) is None:
            return
        back = self.chance.choice((job.nack, job.release))
        again = await self.prompt("give back", self._queue.pop(1, wait=WAIT_S), back)
        await self._settled(again)

    async def _lease(self) -> None:
        """A lease that is not renewed ends in time."""
        if (await self._popped()) is None:
            return
        due_s, before = self.world.now_s + 2.0, (self.system.lives, self.world.troubles)
        answered_s, jobs = await self._answered(self._queue.pop(1, wait=WAIT_S))
        undisturbed = before == (self.system.lives, self.world.troubles)
        if undisturbed and answered_s is not None and answered_s > due_s + LATE_S:
            self.world.found("woken", f"a lease of 2 s ended {answered_s - due_s:.1f} s late")
        await self._settled(jobs)

    async def _result(self) -> None:
        if (job := await self._popped()) is not None:
            job.result(5)
            await self.prompt("ack", self._queue.result(job.id, wait=WAIT_S), job.ack)

    async def _record(self) -> None:
        stream = self._stream
        async with contextlib.AsyncExitStack() as stack:
            with contextlib.suppress(NexoError):
                consumer = await stack.enter_async_context(stream.consume(f"{self.name}", batch=50))
                while len(await consumer.fetch(wait=0)):
                    pass
                records = await self.prompt(
                    "publish", consumer.fetch(wait=WAIT_S), lambda: stream.publish("x")
                )
                if records is not None:
                    await records.ack()


class ListeningActor(WaitingActor):
    """Waits for messages."""

    async def begin(self) -> None:
        self._messages = await self.client.pubsub.subscribe(f"wait/{self.name}")

    async def act(self) -> None:
        topic = f"wait/{self.name}"
        publish = self.client.pubsub.publish
        await self.prompt("publish", self._messages.get(WAIT_S), lambda: publish(topic, 1))
        with contextlib.suppress(NexoError):
            while True:
                await self._messages.get(0)
