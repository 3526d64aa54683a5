"""Consumers of one shared group, who publish what they consume."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from nexo.errors import NexoError
from tests.simulation.clients.actor import Actor
from tests.simulation.oracle.groups import GroupOracle

ACK_WAIT_S = 3.0


class GroupMember(Actor):
    """Publishes, fetches, acks, and leaves now and then."""

    think_s = (0.0, 0.4)

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.oracle = self.system.model("group", lambda: GroupOracle(self.world, "readers"))
        self._stream = self.client.stream("shared")
        self._consumer: Any = None
        self._troubles = 0

    async def begin(self) -> None:
        await self._stream.create(partitions=2, persistence="file_sync")

    async def act(self) -> None:
        if self._troubles != self.world.troubles:
            self._troubles = self.world.troubles
            self.oracle.disturbed()
        if self.chance.random() < 0.4:
            await self._publish()
        else:
            await self._fetch()
        if self.chance.random() < 0.03:
            await self._leave()

    async def _publish(self) -> None:
        value, asked_s = f"{self.name}:{self.ops}", self.world.now_s
        ended = await self.attempt("publish", self._stream.publish(value))
        if ended.ok:
            place = ended.value.partition, ended.value.offset
            self.oracle.was_published(place, value, asked_s)

    async def _fetch(self) -> int:
        if self._consumer is None:
            self._consumer = self._stream.consume(
                "readers", batch=5, ack_wait=ACK_WAIT_S, max_deliveries=1_000
            )
        began_s, troubles = self.world.now_s, self.world.troubles
        wait_s = self.chance.choice((0, 1, 4))
        ended = await self.attempt("fetch", self._consumer.fetch(wait=wait_s))
        if not ended.ok:
            return 0
        if troubles != self.world.troubles:
            self.oracle.disturbed()
        for record in ended.value:
            place = record.partition, record.offset
            self.oracle.delivering(self.name, place, str(record.value), began_s, ACK_WAIT_S)
        if self.chance.random() < 0.1:
            await asyncio.sleep(self.chance.uniform(0, 5))
        for record in ended.value:
            await self._settle(record)
        return len(ended.value)

    async def _settle(self, record: Any) -> None:
        place = record.partition, record.offset
        self.oracle.settled(place)
        match 9 if self.system.is_quiet else self.chance.randrange(10):
            case 0:
                await self.attempt("nack", record.nack())
            case 1:
                await self.attempt("release", record.release())
            case 2:
                return
            case _:
                asked_s = self.world.now_s
                if (await self.attempt("ack", record.ack())).ok:
                    self.oracle.was_acked(place, asked_s)

    async def _leave(self) -> None:
        consumer, self._consumer = self._consumer, None
        self.oracle.disturbed()
        if consumer is not None:
            with contextlib.suppress(NexoError):
                await consumer.close()

    async def check(self) -> None:
        idle = 0
        while idle < 3:
            idle = 0 if await self._fetch() else idle + 1
            await asyncio.sleep(1.5)
        if self.system.last("group", 2):
            self.oracle.at_end()
