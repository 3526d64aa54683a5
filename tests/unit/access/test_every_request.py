"""Every opcode against a user without permissions: use cases ask themselves (SPEC A10)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from nexo.access.login import Identity
from nexo.access.users import User
from nexo.config import Settings
from nexo.dialects.nexo.handlers import Handler
from nexo.dialects.nexo.requests import build_table
from nexo.errors import Forbidden, NexoError
from nexo.model import Broker, Buffer
from nexo.protocol.ops import BROKER_OF, Op
from nexo.server.host import Host
from tests.memory_files import MemoryFiles
from tests.unit.access.samples import REQUESTS

OPS = sorted(op for op in REQUESTS if BROKER_OF[op] is not None)
OF_THE_CONNECTION = {
    Op.S_TX_BEGIN, Op.S_TX_PUBLISH, Op.S_TX_COMMIT, Op.S_TX_ABORT, Op.S_TX_OUTCOME,
}  # fmt: skip
"""Requests about what only the connection or the user itself has begun; a publish in a
transaction is asked for once that is open."""


class Stranger:
    """A connection of a user without permissions, which remembers what it is told."""

    id = 1
    name = "test"
    said_hello = True
    closed = False
    congested = False
    resends = False

    def __init__(self) -> None:
        self.identity: Identity | None = Identity(User("ana"), None)
        self.told: list[object] = []

    def ok(self, request_id: int) -> None:
        self.told.append("ok")

    def null(self, request_id: int) -> None:
        self.told.append(None)

    def data(self, request_id: int, *parts: Buffer) -> None:
        self.told.append(b"".join(parts))

    def fail(self, request_id: int, error: NexoError) -> None:
        self.told.append(error)

    def push(self, frames: Buffer) -> None:
        self.told.append(bytes(frames))

    def kick(self, reason: str) -> None: ...


@pytest.fixture
async def handlers() -> AsyncIterator[list[Handler | None]]:
    settings = Settings(data_dir=Path("/data"), disk_reserve_bytes=0)
    host = Host(settings, MemoryFiles, Broker)
    host.open()
    yield build_table(host.services).handlers
    host.crash()


def test_every_request_has_a_sample() -> None:
    assert set(REQUESTS) == set(Op) - {Op.HELLO}


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
async def test_a_user_without_permissions_does_and_learns_nothing(
    op: Op, handlers: list[Handler | None]
) -> None:
    handler, stranger = handlers[op], Stranger()
    assert handler is not None
    try:
        handler(stranger, 1, memoryview(REQUESTS[op]))
    except NexoError as error:
        stranger.told.append(error)
    if op not in OF_THE_CONNECTION:
        (told,) = stranger.told
        assert isinstance(told, Forbidden), told
        assert "user 'ana' may not" in told.message
