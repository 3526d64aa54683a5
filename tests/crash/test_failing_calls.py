"""Every file call of every broker fails, one after the other (SPEC Q2, Q3; findings T3, T21, T23).

A call is refused once, or as often as it is tried again, while clients work on a real server; then
the server is killed and started again, twice. What was acknowledged is there, what was refused is
not, whoever cannot know is told so by a typed error, and everything serves again by itself. A
few calls each, by ``SEED``; ``SOAK=1`` takes all of them.
"""

from __future__ import annotations

import asyncio
import errno
import os
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

import nexo
from nexo.client.views import job_view
from nexo.config import Settings
from nexo.errors import ConnectionLost, NexoError, OutcomeUnknown, RequestTimeout
from nexo.model import Broker
from nexo.protocol.messages import pack, unpack
from nexo.protocol.ops import Op
from nexo.protocol.queue import PeekJobs
from nexo.server.embedded import EmbeddedServer
from nexo.services.queue import open_queue
from nexo.storage.disk.steady import TRIES
from tests.failing_calls import FailingFiles, Fault, Remains
from tests.memory_files import MemoryFiles

SOAK = bool(os.environ.get("SOAK"))
SEED = int(os.environ.get("SEED") or random.randrange(1 << 32))
CASES = 12
"""Of each broker, unless all are taken."""
UNSURE = (ConnectionLost, RequestTimeout, OutcomeUnknown)
CODES = (errno.EMFILE, errno.ENOSPC, errno.EIO, errno.EINTR)
REMAINS: tuple[Remains, ...] = ("nothing", "half", "all")


@dataclass
class Told:
    """What clients were told: of each write ``ok``, ``refused`` or ``unsure``."""

    writes: dict[str, str] = field(default_factory=dict)
    taken: set[str] = field(default_factory=set)
    """Jobs whose ack was confirmed, keys and messages whose removal was."""
    maybe_taken: set[str] = field(default_factory=set)
    problems: list[str] = field(default_factory=list)

    async def write(self, value: str, call: Awaitable[Any]) -> Any:
        found, self.writes[value] = await self.ask(value, call)
        return found

    async def remove(self, values: list[str], call: Awaitable[Any]) -> None:
        _, ended = await self.ask(f"removal of {values}", call)
        if ended == "ok":
            self.taken |= {*values}
        elif ended == "unsure":
            self.maybe_taken |= {*values}

    async def ask(self, what: str, call: Awaitable[Any]) -> tuple[Any, str]:
        """The result of a call, and how it ended."""
        try:
            return await call, "ok"
        except UNSURE:
            return None, "unsure"
        except NexoError as error:
            if type(error) is NexoError:
                self.problems.append(f"{what}: {error}")
            return None, "refused"

    def check(self, there: Counter[str], *, doubles: bool = False) -> None:
        """Compare with what a server has."""
        for value, ended in self.writes.items():
            gone = value in self.taken
            if ended == "ok" and not gone and value not in self.maybe_taken and not there[value]:
                self.problems.append(f"{value} was acknowledged and is lost")
            if (ended == "refused" or gone) and there[value]:
                self.problems.append(f"{value} was {'removed' if gone else 'refused'} and is there")
            if there[value] > 1 and not doubles:
                self.problems.append(f"{value} is there {there[value]} times")
        self.problems += [
            f"{value}: nobody wrote it" for value in there if value not in self.writes
        ]


Work = Callable[[nexo.AsyncClient, Told, str], Awaitable[None]]
Look = Callable[[nexo.AsyncClient], Awaitable[Counter[str]]]


# -- what clients do ------------------------------------------------------------------------


async def use_queues(client: nexo.AsyncClient, told: Told, part: str) -> None:
    for mode in ("file_sync", "file_async"):
        queue = client.queue(f"{mode}-{part}", str)
        await told.ask("create", queue.create(persistence=mode, max_retries=5))
        for number in range(3):
            await told.write(value := f"{mode} {part} {number}", queue.push(value))
        many = [f"{mode} {part} many {number}" for number in range(3)]
        _, ended = await told.ask("push_many", queue.push_many(many))
        told.writes |= dict.fromkeys(many, ended)
        batch, _ = await told.ask("pop", queue.pop(2))
        for job in batch or ():
            await told.remove([job.value], job.ack())
        batch, _ = await told.ask("pop", queue.pop(1))
        for job in batch or ():
            await told.ask("nack", job.nack())
    gone = client.queue(f"gone-{part}", str)
    await told.ask("create", gone.create())
    await told.write(value := f"gone {part}", gone.push(value))
    await told.remove([value], gone.delete())


async def look_at_queues(client: nexo.AsyncClient) -> Counter[str]:
    found: Counter[str] = Counter()
    for name in await client.queues():
        for state in ("waiting", "scheduled", "working"):
            reply = await client.link(Broker.QUEUE).call(
                Op.Q_PEEK, pack(PeekJobs(name, 100, 0, state))
            )
            rows = unpack(list[dict[str, Any]], reply or b"")
            found.update(str(job_view(row, str).value) for row in rows)
    return found


async def use_streams(client: nexo.AsyncClient, told: Told, part: str) -> None:
    for mode in ("file_sync", "file_async"):
        stream = client.stream(f"{mode}-{part}", str)
        await told.ask("create", stream.create(persistence=mode))
        for number in range(3):
            await told.write(value := f"{mode} {part} {number}", stream.publish(value))
        many = [f"{mode} {part} many {number}" for number in range(3)]
        _, ended = await told.ask("publish_many", stream.publish_many(many))
        told.writes |= dict.fromkeys(many, ended)
        consumer = stream.consume("readers", batch=2)
        batch, _ = await told.ask("fetch", consumer.fetch(wait=0))
        if batch:
            await told.ask("ack", batch.ack())
        await told.ask("close", consumer.close())
    transaction = client.transaction()
    await told.ask("begin", transaction.begin())
    values = [f"pair {part} {side}" for side in "ab"]
    ends = {
        (await told.ask("within", transaction.publish(f"file_{mode}-{part}", value)))[1]
        for mode, value in zip(("sync", "async"), values, strict=True)
    }
    if ends == {"ok"}:
        _, ended = await told.ask("commit", transaction.commit())
    else:
        ended = "refused"
        await told.ask("abort", transaction.abort())
    told.writes |= dict.fromkeys(values, ended)
    gone = client.stream(f"gone-{part}", str)
    await told.ask("create", gone.create())
    await told.write(value := f"gone {part}", gone.publish(value))
    await told.remove([value], gone.delete())


async def look_at_streams(client: nexo.AsyncClient) -> Counter[str]:
    found: Counter[str] = Counter()
    pairs: Counter[str] = Counter()
    for name in await client.streams():
        values = [record.value for record in await client.stream(name, str).read()]
        found.update(values)
        pairs.update(value[:-2] for value in values if value.startswith("pair"))
    assert not [part for part, count in pairs.items() if count % 2], "half a transaction"
    return found


async def use_topics(client: nexo.AsyncClient, told: Told, part: str) -> None:
    for number in range(4):
        topic = f"t/{part}/{number}"
        await told.write(topic, client.pubsub.publish(topic, topic, retain=True))
    await told.remove([topic], client.pubsub.publish(topic, b"", retain=True))


async def look_at_topics(client: nexo.AsyncClient) -> Counter[str]:
    return Counter([row.topic for row in await client.pubsub.retained("t/#")])


async def use_keys(client: nexo.AsyncClient, told: Told, part: str) -> None:
    """Keys are as durable as the last snapshot, which a stop saves: locks have their own file."""
    for number in range(3):
        await told.ask("set", client.store.set(f"{part}-{number}", number))
    await told.ask("incr", client.store.incr(f"{part}-count"))
    for _ in range(2):
        lock = client.store.lock(f"lock-{part}")
        _, ended = await told.ask("acquire", lock.acquire(timeout=1))
        if ended == "ok":
            await told.ask("release", lock.release())


async def look_at_keys(client: nexo.AsyncClient) -> Counter[str]:
    """Nothing to compare: keys are as safe as the last snapshot."""
    await client.store.get("anything")
    return Counter()


KINDS: dict[Broker, tuple[Work, Look]] = {
    Broker.STORE: (use_keys, look_at_keys),
    Broker.PUBSUB: (use_topics, look_at_topics),
    Broker.QUEUE: (use_queues, look_at_queues),
    Broker.STREAM: (use_streams, look_at_streams),
}


# -- one case -------------------------------------------------------------------------------


class World:
    """A server of one broker, whose files outlive it."""

    def __init__(self, broker: Broker, fault: Fault | None) -> None:
        self.files = FailingFiles(MemoryFiles(), fault)
        self.told = Told()
        self._broker = broker
        self._use, self._look = KINDS[broker]

    async def run(self, end: str = "crash") -> list[str]:
        """What went wrong."""
        await self._life("first", end=end)
        self.files.fault = None
        self.files = FailingFiles(self.files.files)  # a failed sync ended with its process
        await self._life("second", end="stop")
        await self._life("third", end="crash")
        late = [value for value, how in self.told.writes.items() if how != "ok" if _is_late(value)]
        self.told.problems += [f"{value}: not served again" for value in late]
        return self.told.problems

    async def _life(self, part: str, end: str) -> None:
        try:
            server = EmbeddedServer(_SETTINGS, [self._broker], lambda: self.files)
            await server.open()
        except NexoError as error:
            if self.files.fault is None or type(error) is NexoError:
                self.told.problems.append(f"the start of the {part} server: {error!r}")
            return
        url = f"nexo://127.0.0.1:{server.port}?while_down=fail&timeout=9"
        async with nexo.AsyncClient(url) as client:
            await self._use(client, self.told, part)
            if self.files.fault is not None and self.files.failed:
                await self._serves_again(client)
            there, ended = await self.told.ask("look", self._look(client))
            if ended == "ok":
                self.told.check(there)
        await (server.crash() if end == "crash" else server.close())

    async def _serves_again(self, client: nexo.AsyncClient) -> None:
        """Once the fault is over, all is served without a restart, unless a sync has failed."""
        broken, self.files.fault = self.files.is_broken, None
        if broken:
            return
        again = Told()
        for attempt in range(4):
            again = Told()
            await self._use(client, again, f"again{attempt}")
            self.told.writes |= again.writes
            self.told.taken |= again.taken
            self.told.maybe_taken |= again.maybe_taken
            self.told.problems += again.problems
            if {*again.writes.values()} <= {"ok"}:
                return
            await asyncio.sleep(1.1)
        self.told.problems.append(f"it does not serve again: {again.writes}")


_SETTINGS = Settings(port=0, segment_bytes=64 * 1024, disk_reserve_bytes=0)


def _is_late(value: str) -> bool:
    return " second" in value or " third" in value


def calls_of(broker: Broker, end: str) -> int:
    """How many file calls the first server makes."""
    world = World(broker, None)
    asyncio.run(world._life("first", end=end))
    assert world.told.problems == []
    return len(world.files.calls)


def faults(broker: Broker) -> list[tuple[Fault, str]]:
    """Every call, refused once and as often as it is tried, and how the server ends.

    Some of them, unless all are wanted.
    """
    chance = random.Random(f"{SEED} {broker}")
    until_crash = calls_of(broker, "crash")
    every = [
        (
            Fault(call, call + tries - 1, code=code, remains=chance.choice(REMAINS)),
            "stop" if call > until_crash - TRIES else "crash",
        )
        for call in range(1, calls_of(broker, "stop") + 1)
        for code in CODES
        for tries in (1, TRIES)
    ]
    return every if SOAK else chance.sample(every, CASES)


@pytest.mark.timeout(7_200 if SOAK else 240)
@pytest.mark.parametrize("broker", KINDS, ids=lambda broker: broker.label)
def test_a_file_call_that_fails_loses_nothing(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    print(f"SEED={SEED}")  # noqa: T201
    monkeypatch.setattr(open_queue, "TAIL_BYTES", 512)
    found: list[str] = []
    tried = faults(broker)
    for fault, end in tried:
        world = World(broker, fault)
        try:
            problems = asyncio.run(asyncio.wait_for(world.run(end), 60))
        except Exception as error:  # the case is named, and the others are tried
            problems = [repr(error)]
        failed = world.files.failed or world.files.calls[fault.first - 1 : fault.last]
        found += [f"{fault} on {failed}: {problem}" for problem in problems]
    print(f"{broker.label}: {len(tried)} cases")  # noqa: T201
    assert found == []
