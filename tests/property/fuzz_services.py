"""Brokers and connections in memory, for fuzzing: bytes in, no bug out.

Each begins anew every now and then, as requests that succeed add up. What a server would log
as an internal error is raised here.
"""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import google_crc32c

from nexo import batch
from nexo.access.login import Identity
from nexo.config import Settings
from nexo.dialects.dialect import Origin
from nexo.dialects.nexo.requests import build_table
from nexo.errors import NexoError
from nexo.model import Broker, Buffer
from nexo.protocol import stream
from nexo.protocol.frames import FrameKind, frame, pack_str
from nexo.protocol.hello import Hello, encode_hello
from nexo.protocol.ops import BROKER_OF, Op
from nexo.protocol.stream_publishing import publish_head
from nexo.server.host import Host
from nexo.storage.header import ALIGN, SIZE, stamp
from tests.memory_files import MemoryFiles
from tests.unit.access.samples import REQUESTS

FOLDER = Path("/data")
BUG = b"internal error; the server's log has"


class Fresh:
    """Something on an event loop that is started anew after ``LIFE`` inputs."""

    LIFE = 2_000

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._errors: list[BaseException] = []
        self._runs = 0

    def __call__(self, data: bytes) -> None:
        if self._loop is None or self._runs % self.LIFE == 0:
            self.close()
            self._loop = asyncio.new_event_loop()
            self._loop.set_exception_handler(self._note)
            self._do(self._start())
        self._runs += 1
        self._do(self._feed(data))
        if self._errors:
            raise self._errors.pop()

    def _do(self, work: Coroutine[Any, Any, None]) -> None:
        assert self._loop is not None
        self._loop.run_until_complete(work)

    def _note(self, loop: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
        error = context.get("exception")
        self._errors.append(error if isinstance(error, BaseException) else RuntimeError(context))

    def close(self) -> None:
        """Forget everything."""
        if self._loop is not None:
            self._do(self._end())
            self._loop.close()
            self._loop = None

    async def _end(self) -> None:
        await self._stop()
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        await asyncio.get_running_loop().shutdown_default_executor()

    async def _start(self) -> None:
        raise NotImplementedError

    async def _feed(self, data: bytes) -> None:
        raise NotImplementedError

    async def _stop(self) -> None:
        raise NotImplementedError


# -- requests -----------------------------------------------------------------------------------


class SilentPeer:
    """A client that drops every answer."""

    def __init__(self) -> None:
        self.id = 1
        self.name = "fuzz"
        self.said_hello = True
        self.identity: Identity | None = None
        self.closed = False
        self.congested = False
        self.resends = False

    def ok(self, request_id: int) -> None: ...

    def null(self, request_id: int) -> None: ...

    def data(self, request_id: int, *parts: Buffer) -> None:
        sum(map(len, parts))

    def fail(self, request_id: int, error: NexoError) -> None:
        pack_str(error.message)

    def push(self, frames: Buffer) -> None: ...

    def kick(self, reason: str) -> None: ...


class Requests(Fresh):
    """One broker in memory; the first byte of an input is the opcode, or picks one."""

    def __init__(self, broker: Broker) -> None:
        super().__init__()
        self._broker = broker
        self._ops = [op for op in sorted(REQUESTS) if BROKER_OF[op] == broker]
        self._host: Host

    async def _start(self) -> None:
        settings = Settings(data_dir=FOLDER, disk_reserve_bytes=0)
        self._host = Host(settings, MemoryFiles, [self._broker])
        self._handlers = build_table(self._host.services).handlers
        self._host.open()

    async def _feed(self, data: bytes) -> None:
        if data:
            op = data[0] if data[0] in self._ops else self._ops[data[0] % len(self._ops)]
            self.ask(op, data[1:])
            await asyncio.sleep(0)
            await asyncio.sleep(0)

    def ask(self, op: int, payload: bytes) -> None:
        """A request; a refusal is fine."""
        handler = self._handlers[op]
        assert handler is not None
        with contextlib.suppress(NexoError):
            handler(SilentPeer(), 1, memoryview(payload))

    async def _stop(self) -> None:
        self._host.crash()


class Publishing(Requests):
    """A stream that hostile batches are published to, and read from again."""

    def __init__(self) -> None:
        super().__init__(Broker.STREAM)

    async def _start(self) -> None:
        await super()._start()
        make = stream.Make(stream="thing", options={"partitions": 3})
        self.ask(Op.S_MAKE, stream.pack(make))

    async def _feed(self, data: bytes) -> None:
        partition = int.from_bytes(data[:1], "big", signed=True) % 4 - 1
        head = publish_head("thing", partition)
        self.ask(Op.S_PUBLISH, head + resealed(data[1:]))
        await asyncio.sleep(0)
        self.ask(Op.S_READ, stream.pack(stream.Read("thing", 0, 0, 4_000)))
        self.ask(Op.S_GET, stream.pack(stream.Get(stream="thing", key=b"k")))
        await asyncio.sleep(0)


def sample_batch() -> bytes:
    """Two records."""
    head, body = batch.encode_plain([b"one", b"two"], 1, 1_000)
    return b"".join([bytes(head), *body])


def resealed(data: bytes) -> bytes:
    """The same batch with checks that fit, as a hostile client would send it."""
    if len(data) < SIZE:
        return data
    body = data[SIZE:]
    body += bytes(-len(body) % ALIGN)
    head = bytearray(data[:SIZE])
    head[:2], head[16:20] = sample_batch()[:2], (SIZE + len(body)).to_bytes(4, "little")
    head[4:8] = int(google_crc32c.value(bytes(head[16:]) + body)).to_bytes(4, "little")
    stamp(head, int.from_bytes(head[8:16], "little", signed=True))
    return bytes(head) + body


# -- connections --------------------------------------------------------------------------------


class Wire(asyncio.Transport):
    """The other end of a protocol: keeps what it says, tells it when it is closed."""

    def __init__(self, protocol: asyncio.BaseProtocol) -> None:
        super().__init__({"peername": ("127.0.0.1", 1), "sockname": ("127.0.0.1", 2)})
        self.said = bytearray()
        self.closing = False
        self._protocol = protocol
        protocol.connection_made(self)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """As if it were encrypted, so that nobody asks for the socket."""
        return self if name == "ssl_object" else super().get_extra_info(name, default)

    def write(self, data: Any) -> None:
        self.said += data

    def writelines(self, list_of_data: Any) -> None:
        self.said += b"".join(list_of_data)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def is_closing(self) -> bool:
        return self.closing

    def can_write_eof(self) -> bool:
        return False

    def close(self) -> None:
        if not self.closing:
            self.closing = True
            asyncio.get_running_loop().call_soon(self._protocol.connection_lost, None)

    abort = close


def settings_in(folder: Path, *, auth: bool) -> Settings:
    """Settings with a user who may do everything, but whose password nobody knows."""
    users = folder / "users.json"
    users.write_text('[{"name": "ana", "grants": ["*:admin:*"]}]')
    users.chmod(0o600)
    return Settings(
        data_dir=folder, users_file=users, port=0, auth=auth, disk_reserve_bytes=0,
        max_payload_bytes=65_536,
    )  # fmt: skip


class Connection(Fresh):
    """A client's connection to all four brokers; the first byte says where its bytes are cut.

    With ``auth`` it has to log in first, and cannot.
    """

    def __init__(self, *, auth: bool) -> None:
        super().__init__()
        self._auth = auth
        self._host: Host

    async def _start(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            settings = settings_in(Path(folder), auth=self._auth)
            self._host = Host(settings, MemoryFiles, Broker)
            self._host.open()

    async def _feed(self, data: bytes) -> None:
        session: Any = self._host.speakers["nexo"].session(Origin.CLIENT)
        wire = Wire(session)
        step = (data[0] if data else 0) * 16 + 1
        for at in range(1, len(data), step):
            rest = memoryview(data)[at : at + step]
            while rest and not wire.closing:
                room = session.get_buffer(-1)
                size = min(len(room), len(rest))
                room[:size] = rest[:size]
                session.buffer_updated(size)
                rest = rest[size:]
        await asyncio.sleep(0)
        wire.close()
        await asyncio.sleep(0)
        assert BUG not in wire.said, bytes(wire.said)

    async def _stop(self) -> None:
        self._host.crash()


def connection_seeds() -> list[bytes]:
    """A hello, then a request of each kind."""
    hello = encode_hello(Broker.QUEUE, Hello("me", "ana", "secret", "token"))
    begin = b"\x40" + frame(FrameKind.REQUEST, Op.HELLO, 0, hello)
    return [begin + frame(FrameKind.REQUEST, op, 1, payload) for op, payload in REQUESTS.items()]
