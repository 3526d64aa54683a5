"""Keys, counters and locks."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from nexo.model import Broker
from tests.simulation.clients.actor import Actor
from tests.simulation.oracle.outcomes import Outcome
from tests.simulation.oracle.store import ABSENT, Counter, KeyModel, LockModel


class StoreActor(Actor):
    """Writes, reads and counts beside others."""

    broker = Broker.STORE

    def _key(self) -> KeyModel:
        name = f"key-{self.chance.randrange(4)}"
        return self.system.model(
            name, lambda: KeyModel(self.world, name, self.system.store_is_kept)
        )

    async def act(self) -> None:
        model, store = self._key(), self.client.store
        match self.chance.randrange(8):
            case 0 | 1:
                await self._write(model, lambda new: store.set(model.key, new))
            case 2:
                ttl_s = self.chance.choice((0.05, 0.5, 3.0))
                await self._write(model, lambda new: store.set(model.key, new, ttl=ttl_s), ttl_s)
            case 3:
                write = model.writing(ABSENT)
                work = store.delete(model.key)
                ended = await self.attempt(f"delete {model.key}", work)
                model.wrote(write, Outcome(ended.kind))
            case 4:
                await self._compare(model)
            case 5:
                await self._count()
            case _:
                await self._read(model)

    async def _write(
        self, model: KeyModel, work: Callable[[int], Awaitable[Any]], ttl_s: float | None = None
    ) -> None:
        value = self.system.next_number()
        write = model.writing(value)
        ended = await self.attempt(f"set {model.key} {value}", work(value))
        model.wrote(write, ended, ttl_s)

    async def _compare(self, model: KeyModel) -> None:
        """Compare and set: a success proves what was there. It may be an older value."""
        known, began_s = self.chance.choice(model.writes[-3:]).value, self.world.now_s
        if known == ABSENT:
            return
        value = self.system.next_number()
        write = model.writing(value)
        work = self.client.store.cas(model.key, known, value)
        ended = await self.attempt(f"cas {model.key} {value}", work)
        if ended.ok and ended.value:
            model.read(known, began_s)
        model.wrote(write, ended)

    async def _count(self) -> None:
        counter = self.system.model("count", lambda: Counter(self.world, "count"))
        asked = counter.adding()
        counter.added(asked, await self.attempt("incr", self.client.store.incr(counter.key)))

    async def _read(self, model: KeyModel) -> None:
        began_s = self.world.now_s
        work = self.client.store.get(model.key, default=ABSENT)
        ended = await self.attempt(f"get {model.key}", work)
        if ended.ok:
            model.read(ended.value, began_s)

    async def check(self) -> None:
        for number in range(4):
            key, began_s = f"key-{number}", self.world.now_s
            get = partial(self.client.store.get, key, default=ABSENT)
            value = await self.until_served(get, 30)
            model = self.system.model(
                key,
                lambda key=key: KeyModel(self.world, key, self.system.store_is_kept),  # type: ignore[misc]
            )
            model.read(value, began_s)


class LockActor(Actor):
    """Takes a lock that others want too, holds it, and gives it back or lets it run out."""

    broker = Broker.STORE

    think_s = (0.0, 2.0)

    async def act(self) -> None:
        name = f"lock-{self.chance.randrange(2)}"
        model = self.system.model(name, lambda: LockModel(self.world, name))
        ttl_s = self.chance.choice((1.0, 3.0, 8.0))
        lock = self.client.store.lock(name, ttl=ttl_s, timeout=self.chance.choice((0, 2.0, 20.0)))
        lives = self.system.lives
        ended = await self.attempt(f"take {name}", lock.acquire())
        if not ended.ok:
            return
        who = f"{self.name}-{self.ops}"
        if lives == self.system.lives:
            model.taken(who, ended.value, lambda: lock.held)
        await asyncio.sleep(self.chance.uniform(0, 2.0))
        model.ended(who)
        await self.attempt(f"release {name}", lock.release())
