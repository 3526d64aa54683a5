"""The pub/sub service on a clock and files of the test's own, with connections that remember."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from nexo.access.login import Identity
from nexo.dialects.nexo.pubsub import PubSubRequests
from nexo.errors import NexoError
from nexo.model import Buffer
from nexo.model.pubsub import Subscribe, Will
from nexo.protocol.frames import pack_str
from nexo.protocol.messages import pack, pack_headed
from nexo.protocol.ops import Op
from nexo.protocol.pubsub import (
    Publish,
    message_frame,
)
from nexo.services.pubsub.service import PubSubService
from nexo.storage.ports import Files
from tests.manual_runtime import ManualRuntime
from tests.memory_files import MemoryFiles
from tests.unit.brokers.pubsub.recorder import messages, split


class PubSubRuntime(ManualRuntime):
    folder = Path("/pubsub")


class Connection:
    """A `Peer` that remembers."""

    _ids = 0

    def __init__(self, desk: Desk, *, coded: bool = True) -> None:
        Connection._ids += 1
        self.id = Connection._ids
        self.name = f"client-{self.id}"
        self.said_hello = coded
        self.identity: Identity | None = None
        self.closed = False
        self.congested = False
        self.resends = False
        self.replies: list[object] = []
        self.pushes: list[bytes] = []
        self.kicked = ""
        self.order: list[str] = []
        self._desk = desk

    def ok(self, request_id: int) -> None:
        self.replies.append("ok")
        self.order.append("reply")

    def null(self, request_id: int) -> None:
        self.replies.append(None)

    def data(self, request_id: int, *parts: Buffer) -> None:
        self.replies.append(b"".join(parts))

    def fail(self, request_id: int, error: NexoError) -> None:
        self.replies.append(error)

    def push(self, frames: Buffer) -> None:
        self.pushes.append(bytes(frames))
        self.order.append("push")

    def kick(self, reason: str) -> None:
        self.kicked = reason
        self.close()

    # -- what the client does

    def ask(self, op: Op, payload: bytes) -> object:
        """Send a request; its reply if there is one by the end of the turn."""
        before = len(self.replies)
        self._desk.requests.handlers[op](self, 1, memoryview(payload))
        self._desk.runtime.end_turn()
        return self.replies[-1] if len(self.replies) > before else None

    def subscribe(self, pattern: str, **options: Any) -> None:
        assert self.ask(Op.SUBSCRIBE, pack(Subscribe(pattern, **options))) == "ok"

    def publish(self, topic: str, content: bytes, **options: Any) -> object:
        """The number of receivers."""
        frame = message_frame(topic.encode(), b"\0" + content, 7)
        if options:
            reply = self.ask(Op.PUBLISH, pack_headed(Publish(**options)) + frame)
        else:
            reply = self.ask(Op.PUBLISH_RUN, frame)
        return int.from_bytes(reply, "big") if isinstance(reply, bytes) else reply

    def will(self, topic: str, content: bytes, **options: Any) -> None:
        self.ask(Op.WILL, pack(Will(topic, b"\0" + content, **options)))

    def old_publish(self, topic: str, options: str, value: bytes) -> object:
        return self.ask(Op.PUB, pack_str(topic) + pack_str(options) + value)

    def close(self) -> None:
        self.closed = True
        self._desk.service.connection_closed(self)
        self._desk.runtime.end_turn()

    @property
    def frames(self) -> list[tuple[int, bytes]]:
        return split(b"".join(self.pushes))

    @property
    def received(self) -> list[tuple[str, bytes]]:
        return messages(b"".join(self.pushes))


class Desk:
    """A running service."""

    def __init__(self, files: Files | None = None, **settings: Any) -> None:
        self.files: Files = files or MemoryFiles()
        self.runtime = PubSubRuntime(self.files, **settings)
        self.service = PubSubService(self.runtime)
        self.requests = PubSubRequests(self.service)
        self.service.open()

    def client(self, *, coded: bool = True) -> Connection:
        return Connection(self, coded=coded)

    def crash(self) -> Desk:
        """The service again, after its process was killed."""
        again = Desk(self.files)
        again.runtime.time.now = self.runtime.time.now
        return again
