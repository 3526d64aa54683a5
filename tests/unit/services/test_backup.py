"""A backup keeps what was there when it began, whatever happens to the files afterwards."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from nexo.access.grants import parse_grant
from nexo.access.login import Identity
from nexo.access.users import User
from nexo.errors import Conflict, Forbidden, InvalidInput, NexoError, ProtocolError
from nexo.model import Broker
from nexo.protocol.server import unpack_ask
from nexo.services.backup import Backups

LOG = "streams/s/0/00.log"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / LOG).parent.mkdir(parents=True)
    (tmp_path / LOG).write_bytes(b"abc")
    (tmp_path / ".removed-1").mkdir()
    for name in ("00.idx", "01.log.new", "nexo.lock", ".removed-1/00.log"):
        (tmp_path / name).write_bytes(b"not data")
    return tmp_path


@pytest.fixture
async def backups(folder: Path) -> Backups:
    return Backups(asyncio.get_running_loop(), {Broker.STREAM: folder})


class AdminConnection:
    """A connection of a user who may administer one broker."""

    name = "test"
    closed = False
    congested = False
    resends = False

    def __init__(self, number: int = 1, broker: str = "stream", action: str = "admin") -> None:
        self.id = number
        grant = parse_grant(f"{broker}:{action}:*")
        self.identity: Identity | None = Identity(User("ana", grants=(grant,)), None)

    def kick(self, reason: str) -> None: ...


ONE, OTHER = AdminConnection(1), AdminConnection(2)


async def read(backups: Backups, number: int, position: int) -> bytes:
    found: asyncio.Future[bytes | NexoError] = asyncio.Future()
    backups.read(ONE, Broker.STREAM, number, position, found.set_result)
    async with asyncio.timeout(10):
        answer = await found
    assert isinstance(answer, bytes), answer
    return answer


def frozen(folder: Path) -> list[Path]:
    return list(folder.glob(".frozen-*"))


async def test_only_data_is_kept(backups: Backups) -> None:
    assert backups.begin(ONE, Broker.STREAM) == [(LOG, 3)]


async def test_what_is_appended_later_is_not_in_it(backups: Backups, folder: Path) -> None:
    backups.begin(ONE, Broker.STREAM)
    with (folder / LOG).open("ab") as file:
        file.write(b"def")
    assert await read(backups, 0, 0) == b"abc"
    assert await read(backups, 0, 2) == b"c"
    assert await read(backups, 0, 3) == b""


async def test_what_is_removed_or_replaced_later_is_in_it(backups: Backups, folder: Path) -> None:
    backups.begin(ONE, Broker.STREAM)
    (folder / "aside").write_bytes(b"new")
    (folder / "aside").rename(folder / LOG)
    assert await read(backups, 0, 0) == b"abc"
    (folder / LOG).unlink()
    assert await read(backups, 0, 0) == b"abc"


@pytest.mark.parametrize(("number", "position"), [(1, 0), (-1, 0), (0, -1)])
async def test_a_place_outside_is_refused(backups: Backups, number: int, position: int) -> None:
    backups.begin(ONE, Broker.STREAM)
    with pytest.raises(InvalidInput):
        await read(backups, number, position)


async def test_two_connections_have_a_backup_each(backups: Backups, folder: Path) -> None:
    backups.begin(ONE, Broker.STREAM)
    backups.begin(OTHER, Broker.STREAM)
    backups.end(OTHER, Broker.STREAM)
    assert await read(backups, 0, 1) == b"bc"
    backups.end(ONE, Broker.STREAM)
    assert frozen(folder) == []
    with pytest.raises(Conflict):
        await read(backups, 0, 0)


async def test_a_backup_ends_with_its_connection(backups: Backups, folder: Path) -> None:
    backups.begin(ONE, Broker.STREAM)
    with pytest.raises(Conflict):
        backups.begin(ONE, Broker.STREAM)
    with pytest.raises(Conflict):
        backups.end(OTHER, Broker.STREAM)
    backups.connection_closed(OTHER)
    assert len(frozen(folder)) == 1
    backups.connection_closed(ONE)
    assert frozen(folder) == []


@pytest.mark.parametrize(("broker", "action"), [("queue", "admin"), ("stream", "read")])
async def test_only_an_administrator_of_the_broker_may(
    backups: Backups, folder: Path, broker: str, action: str
) -> None:
    reader = AdminConnection(1, broker, action)  # with the number of one who has a backup
    backups.begin(ONE, Broker.STREAM)
    with pytest.raises(Forbidden):
        backups.begin(reader, Broker.STREAM)
    with pytest.raises(Forbidden):
        backups.read(reader, Broker.STREAM, 0, 0, lambda _: None)
    with pytest.raises(Forbidden):
        backups.end(reader, Broker.STREAM)
    assert len(frozen(folder)) == 1


def test_a_malformed_request_is_refused() -> None:
    with pytest.raises(ProtocolError):
        unpack_ask(b"\xc1")
