"""Twenty clients on all brokers that know both servers, and note what they were told."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import nexo
from nexo.errors import NexoError
from nexo.types import AsyncJob, AsyncStreamRecord, Message, Queue
from tests.timing import wait_until

PAUSE_S = 0.05
MODES = {
    "jobs": "replicated", "records": "replicated", "topics": "replicated", "pairs": "replicated",
    "synced-jobs": "file_sync", "synced-records": "file_sync",
    "quick-jobs": "file_async", "quick-records": "file_async",
    "keys": "snapshots",
}  # fmt: skip
"""What the clients write, and how safe it is. Pairs are transactions over two streams."""
WRITERS = 18
"""Two of each; the other two of the twenty clients work on jobs and read records."""
PAIR = ("left", "right")


@dataclass
class Told:
    """What one kind of write was acknowledged."""

    values: dict[str, float] = field(default_factory=dict)
    """Each with the time of its acknowledgement."""
    numbers: Counter[object] = field(default_factory=Counter)
    """Ids and offsets that were given out."""
    lost_s: list[float] = field(default_factory=list)
    """Of keys: when those were acknowledged that were gone after a takeover."""


class Load(threading.Thread):
    """All clients in a loop of their own."""

    def __init__(self, url: str) -> None:
        super().__init__(daemon=True)
        self.told = {kind: Told() for kind in MODES}
        self.worked: Counter[str] = Counter()
        """Jobs that the worker was given."""
        self.read: Counter[str] = Counter()
        """Records that the reader was given."""
        self.heard: set[str] = set()
        """Retained messages that a subscriber was given."""
        self.written = threading.Event()
        """Tells the writers to stop."""
        self.ended = threading.Event()
        """Tells all to stop."""
        self._url = url
        self._after_s: float | None = None
        self.first_s: float | None = None
        """When the first replicated write was acknowledged that began after `since`."""

    def since(self, moment_s: float) -> None:
        self.first_s, self._after_s = None, moment_s

    def unseen(self) -> dict[str, int]:
        """Jobs that nobody worked on, and records that nobody read, of those acknowledged."""
        return {
            "jobs": len(self.told["jobs"].values.keys() - self.worked),
            "records": len(self.told["records"].values.keys() - self.read),
        }

    def end(self) -> None:
        """Stop all clients; the thread ends."""
        self.written.set()
        self.ended.set()
        self.join()

    def run(self) -> None:
        asyncio.run(self._run())

    async def _run(self) -> None:
        kinds = list(MODES)
        writers = [self._writer(kinds[at % len(kinds)], at) for at in range(WRITERS)]
        await asyncio.gather(self._worker(), self._reader(), *writers)

    # -- clients that take -----------------------------------------------------------------

    async def _worker(self) -> None:
        async def handle(job: AsyncJob[object]) -> None:
            self.worked[str(job.value)] += 1

        async with nexo.AsyncClient(f"{self._url}?timeout=60&down_wait=60") as client:
            subscription = await client.queue("jobs").subscribe(handle, batch=5, wait=1)
            await self._until_ended()
            await subscription.close()

    async def _reader(self) -> None:
        async def handle(record: AsyncStreamRecord[object]) -> None:
            self.read[str(record.value)] += 1

        def hear(message: Message[object]) -> None:
            self.heard.add(str(message.value))

        async with nexo.AsyncClient(f"{self._url}?timeout=60&down_wait=60") as client:
            await client.pubsub.subscribe("last/#", hear)
            subscription = await client.stream("records").subscribe("readers", handle, wait=1)
            await self._until_ended()
            await subscription.close()

    async def _until_ended(self) -> None:
        while not self.ended.is_set():
            await asyncio.sleep(PAUSE_S)

    # -- clients that write ----------------------------------------------------------------

    async def _writer(self, kind: str, at: int) -> None:
        turn = 0
        async with nexo.AsyncClient(f"{self._url}?while_down=fail&timeout=3") as client:
            write = _write_of(client, kind, at)
            while not self.written.is_set():
                turn += 1
                if not await self._write(kind, f"{at}-{turn}", write) and kind == "keys":
                    await self._look_for_lost(client, at)
                await asyncio.sleep(PAUSE_S)

    async def _write(
        self, kind: str, value: str, write: Callable[[str], Awaitable[object]]
    ) -> bool:
        began_s = time.monotonic()
        try:
            number = await write(value)
        except NexoError:
            return False  # its outcome is not known
        now_s = time.monotonic()
        self.told[kind].values[value] = now_s
        self.told[kind].numbers[number] += 1
        after_s = self._after_s
        is_safe = MODES[kind] == "replicated"
        if is_safe and self.first_s is None and after_s and began_s > after_s:
            self.first_s = now_s
        return True

    async def _look_for_lost(self, client: nexo.AsyncClient, at: int) -> None:
        """After a failure: is the key what it was last told to be?"""
        told = self.told["keys"]
        while not self.written.is_set():
            try:
                found = await client.store.get(f"key/{at}")
                break
            except NexoError:
                await asyncio.sleep(PAUSE_S)
        else:
            return
        kept = int(str(found).partition("-")[2]) if found else 0
        lost = [value for value in told.values if _is_after(value, at, kept)]
        told.lost_s += [told.values.pop(value) for value in lost]


def _is_after(value: str, at: int, turn: int) -> bool:
    writer, _, its_turn = value.partition("-")
    return int(writer) == at and int(its_turn) > turn


def _write_of(client: nexo.AsyncClient, kind: str, at: int) -> Callable[[str], Awaitable[object]]:
    """Writes a value, and returns the number that it was given."""
    if kind.endswith("jobs"):
        return client.queue(kind).push
    if kind.endswith("records"):
        stream = client.stream(kind)

        async def publish(value: str) -> object:
            return (await stream.publish(value)).offset

        return publish
    if kind == "pairs":
        return lambda value: _write_pair(client, value)

    async def put(value: str) -> object:
        if kind == "topics":
            await client.pubsub.publish(f"last/{at}", value, retain=True)
        else:
            await client.store.set(f"key/{at}", value)
        return value

    return put


async def _write_pair(client: nexo.AsyncClient, value: str) -> object:
    async with client.transaction(timeout=10) as transaction:
        place = await transaction.publish(PAIR[0], value)
        await transaction.publish(PAIR[1], value)
    return place.offset


def create(url: str) -> None:
    """What the load writes to."""
    with nexo.Client(url) as client:
        for kind, mode in MODES.items():
            if kind.endswith("jobs"):
                client.queue(kind).create(persistence=mode)
            elif kind.endswith("records"):
                client.stream(kind).create(persistence=mode)
        for name in PAIR:
            client.stream(name).create(persistence="replicated")


def found(url: str) -> dict[str, set[object]]:
    """What the leader has: all but the jobs that are worked on, both halves of the pairs apart."""
    with nexo.Client(f"{url}?timeout=60") as client:
        queues = [kind for kind in MODES if kind.endswith("-jobs")]
        streams = [kind for kind in MODES if kind.endswith("records")]
        values = {kind: _jobs(client.queue(kind)) for kind in queues}
        for name in (*streams, *PAIR):
            values[name] = _records(client, name)
        values["topics"] = _retained(client)
    return values


def _retained(client: nexo.Client) -> set[object]:
    messages: list[Message[object]] = []
    topics = len(client.pubsub.retained("last/#"))
    with client.pubsub.subscribe("last/#", messages.append):
        wait_until(lambda: len(messages) >= topics, 60)
    return {message.value for message in messages}


def _records(client: nexo.Client, name: str) -> set[object]:
    values: set[object] = set()
    offset = 0
    while records := client.stream(name).read(offset=offset):
        values |= {record.value for record in records}
        offset = records[-1].offset + 1
    return values


def _jobs(queue: Queue[object]) -> set[object]:
    values: set[object] = set()
    while page := queue.peek(limit=10_000, offset=len(values)):
        values |= {view.value for view in page}
    return values
