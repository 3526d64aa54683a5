"""Keys, counters and locks."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from nexo.errors import NexoError, RequestTimeout
from tests.simulation.clients.actor import Actor
from tests.simulation.oracle.store import ABSENT, Counter, LockModel, Register


class StoreActor(Actor):
    """Sole writer of a few keys."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._registers = [Register(self.world, f"{self.name}-r{n}") for n in range(3)]
        self._counter = Counter(self.world, f"{self.name}-c")
        self._next = 0

    async def act(self) -> None:
        register = self.chance.choice(self._registers)
        self._note_life(register)
        match self.chance.randrange(6):
            case 0 | 1:
                await self._set(register)
            case 2:
                ended = await self.attempt("delete", self.client.store.delete(register.key))
                self._note_life(register)
                register.wrote(ended, ABSENT)
            case 3:
                self._note_life(self._counter)
                ended = await self.attempt("incr", self.client.store.incr(self._counter.key))
                self._note_life(self._counter)
                self._counter.added(ended)
                self._note_life(self._counter)
            case _:
                await self._read(register)

    async def _set(self, register: Register) -> None:
        self._next += 1
        value = self._next
        ended = await self.attempt(f"set {value}", self.client.store.set(register.key, value))
        register.wrote(ended, value)
        self._note_life(register)

    async def _read(self, register: Register) -> None:
        work = self.client.store.get(register.key, default=ABSENT)
        ended = await self.attempt(f"get {register.key}", work)
        self._note_life(register)
        if ended.ok:
            register.read(ended.value)
            self._note_life(register)

    def _note_life(self, model: Register | Counter) -> None:
        model.server_started(self.system.lives, kept=self.system.store_is_kept)

    async def check(self) -> None:
        for register in self._registers:
            await self.until_served(lambda r=register: self._checked(r), 30)

    async def _checked(self, register: Register) -> None:
        value = await self.client.store.get(register.key, default=ABSENT)
        self._note_life(register)
        register.read(value)


class LockActor(Actor):
    """Takes a lock that others want too, holds it, and gives it back or lets it run out."""

    think_s = (0.0, 2.0)

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._models: dict[str, LockModel] = self.system.shared("locks", dict)

    async def act(self) -> None:
        name = f"lock-{self.chance.randrange(2)}"
        model = self._models.setdefault(name, LockModel(self.world, name))
        ttl_s = self.chance.choice((1.0, 3.0, 8.0))
        lock = self.client.store.lock(name, ttl=ttl_s, timeout=self.chance.choice((0, 2.0, 20.0)))
        asked_s, lives = self.world.now_s, self.system.lives
        ended = await self.attempt(f"take {name}", lock.acquire())
        if not ended.ok:
            return
        who = f"{self.name}-{self.ops}"
        if lives == self.system.lives:
            model.taken(who, ended.value, asked_s + ttl_s)
        await asyncio.sleep(self.chance.uniform(0, 2.0))
        model.ended(who)
        await self.attempt(f"release {name}", lock.release())


class WaitingActor(Actor):
    """Waits for a lock whose holder's key gets a time to live, is deleted or given back."""

    think_s = (1.0, 6.0)

    async def act(self) -> None:
        name = f"{self.name}-{self.chance.randrange(3)}"
        holder = self.client.store.lock(name, ttl=60)
        if not (await self.attempt("hold", holder.acquire(0))).ok:
            return
        waiter = asyncio.ensure_future(self._waited(name))
        await asyncio.sleep(self.chance.uniform(0.2, 1.0))
        free_s, lives = self.world.now_s, (self.system.lives, self.system.troubles)
        match self.chance.randrange(3):
            case 0:
                ended = await self.attempt("release", holder.release())
            case 1:
                ended = await self.attempt("delete", self.client.store.delete(name))
            case _:
                ended = await self.attempt("expire", self.client.store.expire(name, 0.3))
        answered_s = await waiter
        undisturbed = lives == (self.system.lives, self.system.troubles)
        if ended.ok and undisturbed and answered_s is not None and answered_s > free_s + 1.5:
            self.world.found(
                "woken", f"who waited for {name} was answered {answered_s - free_s:.1f} s late"
            )
        holder._holder = None
        await asyncio.sleep(0)

    async def _waited(self, name: str) -> float | None:
        other = self.client.store.lock(name, ttl=1)
        try:
            await other.acquire(8)
        except RequestTimeout:
            return self.world.now_s
        except NexoError:
            return None
        answered_s = self.world.now_s
        with contextlib.suppress(NexoError):
            await other.release()
        return answered_s
