"""Who publishes records, and who reads all of them at the end."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, ClassVar

from nexo.errors import Corrupt
from nexo.model import Broker
from tests.simulation.clients.actor import Actor
from tests.simulation.oracle.stream import StreamOracle


class StreamActor(Actor):
    """The stream and what is known of it."""

    broker = Broker.STREAM

    stream_name = "events"
    options: ClassVar[dict[str, Any]] = {"partitions": 2, "persistence": "file_async"}

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        mode = self.options["persistence"]
        window_s = 0.0 if mode != "file_async" else 5.0
        self.oracle: StreamOracle = self.system.model(
            f"stream {self.stream_name}",
            lambda: StreamOracle(
                self.world, self.stream_name, window_s, replicated=mode == "replicated"
            ),
        )
        self.stream = self.client.stream(self.stream_name)

    async def begin(self) -> None:
        await self.stream.create(**self.options)


class Publisher(StreamActor):
    """Publishes numbered records, one or several per turn."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._number = 0

    async def act(self) -> None:
        count = self.chance.choice((1, 1, 3, 10))
        await asyncio.gather(*(self._publish() for _ in range(count)))

    async def _publish(self) -> None:
        self._number += 1
        number = self._number
        value = f"{self.name}:{number}:" + "x" * self.chance.choice((0, 20, 500, 9_000))
        key = self.chance.choice((None, "a", "b", "c"))
        sent = self.oracle.sending(value, self.name, number, key)
        replicated = self.options["persistence"] == "replicated"
        what = f"publish {number} to {self.stream_name}"
        self.oracle.sent(
            sent,
            await self.attempt(what, self.stream.publish(value, key=key), replicated=replicated),
        )

    async def check(self) -> None:
        if not self.system.first(f"read {self.stream_name}"):
            return
        self.oracle.at_end(await self.until_served(self._everything, 30))

    async def _everything(self) -> list[tuple[int, int, str]]:
        found: list[tuple[int, int, str]] = []
        for partition in range(self.options["partitions"]):
            offset = 0
            while records := await self._read(partition, offset):
                found += ((partition, one.offset, str(one.value)) for one in records)
                offset = records[-1].offset + 1
        return found

    async def _read(self, partition: int, offset: int) -> Sequence[Any]:
        """The next records, also those after what was lost with the power."""
        while True:
            try:
                return await self.stream.read(partition, offset)
            except Corrupt as error:
                if not self.oracle.may_be_damaged or error.next_offset is None:
                    raise
                offset = error.next_offset


class SyncPublisher(Publisher):
    """To a stream that is synced before the reply."""

    stream_name = "orders"
    options: ClassVar[dict[str, Any]] = {"partitions": 1, "persistence": "file_sync"}
