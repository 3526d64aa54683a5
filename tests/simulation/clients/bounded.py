"""A queue of one's own with a bound and duplicates: what it holds is known exactly."""

from __future__ import annotations

from typing import Any

from nexo.errors import QueueFull
from tests.simulation.clients.actor import Actor

ROOM = 6


class BoundedActor(Actor):
    """The only one who uses its queue. After an outcome that is not certain it begins anew."""

    think_s = (0.1, 1.0)

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._queue = self.client.queue("none")
        self._held: dict[str, tuple[int, int]] | None = None
        """By deduplication key: priority, and the number that it was pushed with."""

    async def act(self) -> None:
        if self._held is None:
            await self._begin_anew()
        elif self.chance.random() < 0.7:
            await self._push(self._held)
        else:
            await self._drain(self._held)

    async def _begin_anew(self) -> None:
        """Use another queue: what is unsure may still come to the old one."""
        await self.attempt("delete", self._queue.delete())
        self._queue = self.client.queue(f"bounded-{self.name}-{self.system.next_number()}")
        created = self._queue.create(
            max_jobs=ROOM, max_retries=1, backoff="none", persistence="file_sync"
        )
        if (await self.attempt("create", created)).ok:
            self._held = {}

    async def _push(self, held: dict[str, tuple[int, int]]) -> None:
        key, number = f"k{self.chance.randrange(10)}", self.system.next_number()
        priority, replace = self.chance.choice((0, 3, 9)), self.chance.random() < 0.3
        work = self._queue.push(number, priority=priority, dedup_key=key, replace=replace)
        ended = await self.attempt(f"push {key}", work)
        fits = key in held or len(held) < ROOM
        if ended.unsure:
            self._held = None
        elif ended.ok and not fits:
            self.world.found(
                "room", f"{self.name}: {key} was taken with {len(held)} of {ROOM} jobs"
            )
        elif ended.ok and (key not in held or replace):
            held.pop(key, None)
            held[key] = (priority, number)
        elif fits and isinstance(ended.error, QueueFull):
            self.world.found("room", f"{self.name}: {key} was refused: {ended.error}; held {held}")

    async def _drain(self, held: dict[str, tuple[int, int]]) -> None:
        """Pop everything: by priority, and by age within one."""
        wanted = [number for _, number in sorted(held.values(), key=lambda one: (-one[0], one[1]))]
        ended = await self.attempt("pop", self._queue.pop(ROOM + 5))
        if not ended.ok:
            self._held = None
            return
        found = [job.value for job in ended.value]
        if found != wanted and not await self._is_rest(found, wanted):
            self.world.found("priority", f"{self.name}: {found} were popped instead of {wanted}")
        self._held = None
        if found and self.chance.random() < 0.5:
            await self._retried(ended.value[0])
        elif (await self.attempt("ack", ended.value.ack())).ok:
            self._held = {}

    async def _is_rest(self, found: list[int], wanted: list[int]) -> bool:
        """Whether the first jobs died: their pop was asked again, and each time it was lost with
        its connection, the first of them was presumed to have begun (SPEC D5)."""
        ended = await self.attempt("dead letters", self._queue.dlq.peek())
        if not ended.ok:
            return True  # nobody knows
        dead = {job.value for job in ended.value if job.cause == "lost"}
        return [number for number in wanted if number not in dead] == found

    async def _retried(self, job: Any) -> None:
        """A nack counts once: one retry is left after the first, and none after the second.

        The first may have been counted before: a connection was lost with the reply to its pop, and
        the client asked again. Then this job was presumed to have begun (SPEC D5).
        """
        before = self.system.lives, self.world.troubles
        if not (await self.attempt("nack", job.nack("first", delay=0))).ok:
            return
        ended = await self.attempt("pop", self._queue.pop(1, wait=1))
        if not ended.ok or before != (self.system.lives, self.world.troubles):
            return
        found = [(each.value, each.attempt) for each in ended.value]
        wanted = [(job.value, 2)] if job.attempt == 1 else []
        if found != wanted:
            self.world.found("attempts", f"{self.name}: {found} instead of {wanted}")
