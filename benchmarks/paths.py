"""The hot paths, small enough to be counted and profiled: client and server in one loop.

A path is prepared on a `Ground` and gives a coroutine function that does the work once. The
server is the embedded one, so that one profile shows both sides of a request; requests still
travel over TCP. Nothing is synced: what is measured here is Python, not a disk.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import nexo
from nexo import batch
from nexo.client._async.link.link import Link
from nexo.client._async.link.wire import Wire
from nexo.client.address import parse_url
from nexo.config import load
from nexo.dialects.nexo.inbox import Inbox
from nexo.dialects.session import READ_BYTES
from nexo.model import Broker
from nexo.protocol.frames import HEADER_SIZE, FrameKind, Status, frame, pack_str
from nexo.protocol.ops import Op
from nexo.server.embedded import EmbeddedServer
from nexo.storage.log import SegmentedLog
from nexo.storage.ports import Files

Work: TypeAlias = Callable[[], Awaitable[object]]

VALUE = b"x" * 100
BATCH = 100
RUN = 1_000
TASKS = 100
CONNECTIONS = 50
NOW_MS = 1_700_000_000_000
_NEVER_MS = 24 * 3_600_000


@dataclass(frozen=True)
class Ground:
    """A server and a client on the running loop, and files of their kind.

    ``opened`` closes what a path opens besides.
    """

    client: Any
    files: Files
    folder: Path
    opened: AsyncExitStack


@asynccontextmanager
async def ground(make_files: Callable[[], Files]) -> AsyncIterator[Ground]:
    """A fresh server that syncs nothing by itself, and its client."""
    with tempfile.TemporaryDirectory(prefix="nexo-bench-") as folder:
        flags = {"port": 0, "data_dir": folder, "dashboard": False, "flush_ms": _NEVER_MS}
        server = EmbeddedServer(load(flags=flags), make_files=make_files)
        await server.open()
        try:
            url = f"nexo://127.0.0.1:{server.port}"
            async with nexo.AsyncClient(url) as client, AsyncExitStack() as opened:
                yield Ground(client, make_files(), Path(folder) / "log", opened)
        finally:
            await server.crash()


@dataclass(frozen=True)
class HotPath:
    """Something done for every request, batch or message."""

    name: str
    what: str
    prepare: Callable[[Ground], Awaitable[Work]]


def _plain(work: Callable[[], object]) -> Work:
    async def once() -> None:
        work()

    return once


# -- pieces ----------------------------------------------------------------------------


async def _frames(_: Ground) -> Work:
    inbox = Inbox(memoryview(bytearray(READ_BYTES)), 1 << 20, lambda *_: None)
    run = frame(FrameKind.REQUEST, Op.MAP_GET, 1, VALUE) * RUN

    def received() -> None:
        inbox.buffer()[: len(run)] = run
        inbox.received(len(run))

    return _plain(received)


async def _encode(_: Ground) -> Work:
    values = [VALUE] * RUN
    return _plain(lambda: batch.encode_plain(values, 0, NOW_MS))


def _entry() -> bytes:
    head, body = batch.encode_plain([VALUE] * RUN, 0, NOW_MS)
    return b"".join((head, *body))


async def _verify(_: Ground) -> Work:
    entry = _entry()
    return _plain(lambda: batch.verify(entry))


async def _values(_: Ground) -> Work:
    entry = _entry()
    return _plain(lambda: batch.decode(entry).values())


async def _cut(_: Ground) -> Work:
    whole = batch.decode(_entry())
    return _plain(lambda: batch.cut(whole, RUN // 4, RUN // 2))


async def _append(on: Ground) -> Work:
    log = SegmentedLog(on.files, on.folder)
    head, body = batch.encode_plain([VALUE] * BATCH, 0, NOW_MS)
    return _plain(lambda: log.append(head, body))


class _NoTransport(asyncio.Transport):
    def write(self, data: object) -> None:
        """Drop it."""

    def is_closing(self) -> bool:
        return False


def _ignore(*_: object) -> None: ...


async def _wire(_: Ground) -> Work:
    """A thousand requests framed, flushed and answered, with no server."""
    address = parse_url("nexo://127.0.0.1")
    wire = Wire(asyncio.get_running_loop(), address, _ignore, _ignore, _ignore)
    wire.connection_made(_NoTransport())
    link = Link(address, Broker.STORE)
    link._wire = wire

    async def once() -> None:
        waiting = [link.call(Op.MAP_GET, VALUE) for _ in range(RUN)]
        await asyncio.sleep(0)
        ids = [number for number, sent in wire.waiting.items() if not sent[0].done()]
        replies = b"".join(frame(FrameKind.RESPONSE, Status.DATA, n, VALUE) for n in ids)
        wire.get_buffer(-1)[: len(replies)] = replies
        wire.buffer_updated(len(replies))
        assert all(future.done() for future in waiting)

    return once


# -- requests, both sides --------------------------------------------------------------


async def _store_get(on: Ground) -> Work:
    await on.client.store.set("key", VALUE)
    return lambda: on.client.store.get("key")


async def _store_set(on: Ground) -> Work:
    return lambda: on.client.store.set("key", VALUE)


async def _store_tasks(on: Ground) -> Work:
    await on.client.store.set("key", VALUE)
    return lambda: asyncio.gather(*(on.client.store.get("key") for _ in range(TASKS)))


async def _pubsub(on: Ground) -> Work:
    subscription = await on.client.pubsub.subscribe("bench/one")

    async def once() -> None:
        await on.client.pubsub.publish_many("bench/one", [VALUE] * BATCH)
        for _ in range(BATCH):
            await subscription.get()

    return once


async def _pubsub_singles(on: Ground) -> Work:
    subscription = await on.client.pubsub.subscribe("bench/one")

    async def once() -> None:
        for _ in range(BATCH):
            on.client.pubsub.publish("bench/one", VALUE)
        for _ in range(BATCH):
            await subscription.get()

    return once


async def _queue(on: Ground) -> Work:
    queue = await on.client.queue("work", bytes).create(persistence="file_async")

    async def once() -> None:
        await queue.push_many([VALUE] * BATCH)
        jobs = await queue.pop(BATCH)
        jobs.values()
        await jobs.ack()

    return once


async def _queue_tasks(on: Ground) -> Work:
    queue = await on.client.queue("work", bytes).create(persistence="file_async")
    return lambda: asyncio.gather(*(queue.push(VALUE) for _ in range(TASKS)))


async def _stream(on: Ground) -> Work:
    stream = await on.client.stream("log", bytes).create()
    values = [VALUE] * BATCH
    return lambda: stream.publish_many(values)


async def _stream_tasks(on: Ground) -> Work:
    stream = await on.client.stream("log", bytes).create()

    async def publish() -> None:
        await stream.publish(VALUE)

    return lambda: asyncio.gather(*(publish() for _ in range(TASKS)))


async def _stream_singles(on: Ground) -> Work:
    await on.client.stream("log", bytes).create()
    asked = frame(FrameKind.REQUEST, Op.S_PUB, 1, pack_str("log") + b"\0" + VALUE)
    return await _alone(on, asked, HEADER_SIZE + 8)


async def _queue_singles(on: Ground) -> Work:
    await on.client.queue("work", bytes).create(persistence="file_async")
    payload = pack_str("work") + pack_str("{}") + b"\0" + VALUE
    return await _alone(on, frame(FrameKind.REQUEST, Op.Q_PUSH, 1, payload), HEADER_SIZE)


async def _alone(on: Ground, asked: bytes, reply_bytes: int) -> Work:
    """Each of many connections of the documents' client asks once, and reads its reply."""
    (host, port), *_ = on.client.address.places
    opened = [await asyncio.open_connection(host, port) for _ in range(CONNECTIONS)]
    for _, writer in opened:
        on.opened.push_async_callback(_closed, writer)

    async def once() -> None:
        for _, writer in opened:
            writer.write(asked)
        for reader, _ in opened:
            await reader.readexactly(reply_bytes)

    return once


async def _closed(writer: asyncio.StreamWriter) -> None:
    writer.close()
    await writer.wait_closed()


async def _stream_group(on: Ground) -> Work:
    stream = await on.client.stream("log", bytes).create()
    consumer = stream.consume("group", batch=BATCH)

    async def once() -> None:
        await stream.publish_many([VALUE] * BATCH)
        records = await consumer.fetch()
        records.payloads()
        await records.ack()

    await consumer.join()
    return once


PATHS = {
    path.name: path
    for path in (
        HotPath("frame-decode", f"{RUN:,} frames of 100 B cut by the server", _frames),
        HotPath("batch-encode", f"a batch of {RUN:,} records", _encode),
        HotPath("batch-verify", f"a batch of {RUN:,} records checked by the broker", _verify),
        HotPath("batch-values", f"the values of a batch of {RUN:,}", _values),
        HotPath("batch-cut", f"a quarter of a batch of {RUN:,}", _cut),
        HotPath("log-append", f"a batch of {BATCH} appended to a log", _append),
        HotPath("client-wire", f"{RUN:,} requests framed and answered", _wire),
        HotPath("store-get", "one GET, both sides", _store_get),
        HotPath("store-set", "one SET, both sides", _store_set),
        HotPath("store-tasks", f"{TASKS} tasks with one GET each", _store_tasks),
        HotPath("pubsub-run", f"publish_many of {BATCH}, and receiving them", _pubsub),
        HotPath("pubsub-singles", f"{BATCH} single publishes, and receiving them", _pubsub_singles),
        HotPath("queue-batch", f"push, pop and ack of {BATCH} jobs", _queue),
        HotPath("queue-tasks", f"{TASKS} tasks with one push each", _queue_tasks),
        HotPath("stream-publish", f"publish_many of {BATCH}", _stream),
        HotPath("stream-tasks", f"{TASKS} tasks with one publish each", _stream_tasks),
        HotPath("stream-singles", f"{CONNECTIONS} connections publish once", _stream_singles),
        HotPath("queue-singles", f"{CONNECTIONS} connections push once", _queue_singles),
        HotPath("stream-group", f"publish, fetch and ack of {BATCH}", _stream_group),
    )
}
