"""The queue service on a desk: manual time, any file system, no sockets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from nexo.access.login import Identity
from nexo.dialects.nexo.queue import QueueRequests
from nexo.errors import NexoError, RequestTimeout
from nexo.model import Buffer, Persistence
from nexo.model.blocks import pack_block
from nexo.model.queue import ACK, JobOutcome
from nexo.protocol.ops import Op
from nexo.protocol.queue import (
    Declare,
    Named,
    PopJobs,
    PopReply,
    PushHead,
    Settled,
    SettleJobs,
    decode,
    encode,
    encode_head,
    pieces_of,
    split_head,
)
from nexo.services.queue.service import QueueService
from nexo.storage.disk.flusher import Flusher
from nexo.storage.ports import Files
from tests.manual_runtime import ManualRuntime

START_MS = 1_700_000_000_000


class QueueRuntime(ManualRuntime):
    """Its syncs are at once."""

    folder = Path("/data/queue")

    def __init__(self, files: Files, now_ms: int, **settings: Any) -> None:
        super().__init__(files, now_ms, **settings)
        self.flusher = Flusher(files, self.folder)
        files.make_folder(self.folder)

    def committed(self, mode: Persistence, callback: Callable[[NexoError | None], None]) -> None:
        try:
            if mode is Persistence.FILE_SYNC:
                self.flusher.sync()
        except NexoError as error:
            callback(error)
        else:
            callback(None)


class DeskPeer:
    """A connection that keeps its replies."""

    def __init__(self, desk: Desk, number: int) -> None:
        self.id = number
        self.name = f"peer{number}"
        self.said_hello = True
        self.identity: Identity | None = None
        self.closed = False
        self.congested = False
        self.resends = False
        self.replies: dict[int, Any] = {}
        self._desk = desk
        self._last_id = 0

    def ok(self, request_id: int) -> None:
        self.replies[request_id] = b""

    def null(self, request_id: int) -> None:
        self.replies[request_id] = None

    def data(self, request_id: int, *parts: Buffer) -> None:
        self.replies[request_id] = b"".join(map(bytes, parts))

    def fail(self, request_id: int, error: NexoError) -> None:
        self.replies[request_id] = error

    def push(self, frames: Buffer) -> None:
        raise AssertionError("queues push nothing")

    def kick(self, reason: str) -> None:
        self.closed = True

    def send(self, op: Op, payload: bytes) -> int:
        """Make a request within the current turn; returns its id."""
        self._last_id += 1
        try:
            self._desk.handlers[op](self, self._last_id, memoryview(payload))
        except NexoError as error:
            self.fail(self._last_id, error)
        return self._last_id

    def call(self, op: Op, payload: bytes) -> Any:
        """Make a request and end the turn; returns or raises the reply."""
        request_id = self.send(op, payload)
        self._desk.runtime.end_turn()
        if request_id not in self.replies:
            raise RequestTimeout(f"request {request_id} waits for its reply")
        reply = self.replies.pop(request_id)
        if isinstance(reply, NexoError):
            raise reply
        return reply

    # -- requests -------------------------------------------------------------

    def create(self, name: str, **options: Any) -> None:
        self.call(Op.Q_DECLARE, encode(Declare(name, options)))

    def push_many(self, name: str, values: Sequence[bytes], **given: Any) -> None:
        self.call(Op.Q_PUSH_MANY, push_request(name, values, **given))

    def pop(self, name: str, limit: int = 100, lease_ms: int = 0) -> tuple[int, dict[int, bytes]]:
        """Token and values by job number; token 0 if there was nothing."""
        return delivered(self.call(Op.Q_POP, encode(PopJobs(name, limit, 0, lease_ms))))

    def settle(self, name: str, token: int, how: JobOutcome = ACK, jobs: Sequence[int] = ()) -> Any:
        runs = [edge for job in jobs for edge in (job, job + 1)] or None
        return self.call(Op.Q_SETTLE, encode(SettleJobs(name, how, [Settled(token, runs)], "no")))

    def info(self, name: str) -> dict[str, Any]:
        return decode(self.call(Op.Q_INFO, encode(Named(name))), dict[str, Any])


def delivered(reply: bytes | None) -> tuple[int, dict[int, bytes]]:
    """What the reply to a pop holds: as `DeskPeer.pop`."""
    if reply is None:
        return 0, {}
    head, raw = split_head(reply)
    delivery = decode(head, PopReply)
    found = {
        piece.first + index: value
        for piece, values in pieces_of(delivery, raw)
        for index, value in enumerate(values)
    }
    return delivery.token, found


def push_request(name: str, values: Sequence[bytes], **given: Any) -> bytes:
    return encode_head(PushHead(name, **given)) + pack_block(values)


class Desk:
    """An opened service; make another on the same files to restart."""

    def __init__(self, files: Files, now_ms: int = START_MS, **settings: Any) -> None:
        self.runtime = QueueRuntime(files, now_ms, **settings)
        self.service = QueueService(self.runtime)
        self.handlers = QueueRequests(self.service).handlers
        self.service.open()
        self._peers = 0

    def client(self) -> DeskPeer:
        self._peers += 1
        return DeskPeer(self, self._peers)

    def pass_time(self, duration_ms: int) -> None:
        self.runtime.time.now += duration_ms
        self.service.tick(self.runtime.time.now)
        self.runtime.end_turn()
