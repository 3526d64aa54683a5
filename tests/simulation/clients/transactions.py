"""Who writes to two streams in transactions, and who reads them meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Any

from nexo.errors import NexoError
from tests.simulation.clients.actor import Actor
from tests.simulation.oracle.outcomes import Outcome
from tests.simulation.oracle.transactions import Place, TransactionOracle, Tried

STREAMS = {"debits": 1, "credits": 2}


class TransactionActor(Actor):
    """Common to both."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.oracle = self.system.model("transactions", lambda: TransactionOracle(self.world))

    async def begin(self) -> None:
        for stream, partitions in STREAMS.items():
            await self.client.stream(stream).create(partitions=partitions, persistence="file_sync")

    async def read(self, stream: str, partition: int, offset: int) -> Sequence[Any]:
        records = await self.client.stream(stream).read(partition, offset)
        found = [(one.offset, str(one.value)) for one in records]
        self.oracle.saw(stream, partition, offset, found)
        return records


class Transactor(TransactionActor):
    """Begins a transaction, writes some records, and ends it in one way or another."""

    think_s = (0.0, 1.5)

    async def act(self) -> None:
        name = f"{self.name}.{self.ops}"
        self.oracle.tried[name] = tried = Tried()
        transaction = self.client.transaction(timeout=self.chance.choice((2, 60)))
        if not (await self.attempt("begin", transaction.begin())).ok:
            return
        tried.kind = "open"
        whole = await self._write(name, tried, transaction)
        way = self.chance.randrange(6)
        if way == 0:  # nobody ends it: its time runs out, or its connection ends
            tried.kind = "unsure"
            return
        tried.kind = "unsure"
        if way == 1 or not whole:
            ended = await self.attempt(f"abort {name}", transaction.abort())
            self.oracle.ended(name, Outcome("refused" if ended.ok else "unsure"))
        else:
            self.oracle.ended(name, await self.attempt(f"commit {name}", transaction.commit()))

    async def _write(self, name: str, tried: Tried, transaction: Any) -> bool:
        """Whether all that it wrote is there for certain."""
        for number in range(self.chance.randint(1, 4)):
            stream, value = self.chance.choice(list(STREAMS)), f"{name}:{number}"
            work = transaction.publish(stream, value, key=self.chance.choice((None, "a", "b")))
            if not (await self.attempt(f"publish {value}", work)).ok:
                return False
            tried.records.add(value)
            if self.chance.random() < 0.3:
                await asyncio.sleep(self.chance.uniform(0, 3))
        return True


class Reader(TransactionActor):
    """Reads along, and everything at the end."""

    think_s = (0.0, 0.3)

    async def act(self) -> None:
        for stream, partitions in STREAMS.items():
            for partition in range(partitions):
                offset = self.oracle.ends.get((stream, partition), 0)
                with contextlib.suppress(NexoError):
                    await self.read(stream, partition, offset)

    async def check(self) -> None:
        await asyncio.sleep(70)  # what nobody ended has timed out
        self.oracle.at_end(await self.until_served(self._everything, 30))

    async def _everything(self) -> dict[Place, str]:
        found: dict[Place, str] = {}
        for stream, partitions in STREAMS.items():
            for partition in range(partitions):
                offset = 0
                while records := await self.read(stream, partition, offset):
                    found.update({(stream, partition, r.offset): str(r.value) for r in records})
                    offset = records[-1].offset + 1
        return found
