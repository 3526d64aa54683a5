"""A backup keeps what was there when it began, whatever happens to the files afterwards."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, cast

import pytest

from nexo.dialects.nexo.backup import Backup, Backups
from nexo.dialects.nexo.handlers import Peer
from nexo.errors import Conflict, InvalidInput, NexoError, ProtocolError
from nexo.model import Buffer
from nexo.protocol import backup as wire
from nexo.protocol.messages import pack, unpack


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "streams" / "s" / "0").mkdir(parents=True)
    (tmp_path / "streams" / "s" / "0" / "00.log").write_bytes(b"abc")
    for name in ("00.idx", "01.log.new", "nexo.lock"):
        (tmp_path / name).write_bytes(b"not data")
    return tmp_path


LOG = "streams/s/0/00.log"


def test_only_data_is_kept(folder: Path) -> None:
    assert Backup(folder, 1).files == [(LOG, 3)]


def test_what_is_appended_later_is_not_in_it(folder: Path) -> None:
    backup = Backup(folder, 1)
    with (folder / LOG).open("ab") as file:
        file.write(b"def")
    assert backup.read(0, 0) == b"abc"
    assert backup.read(0, 2) == b"c"
    assert backup.read(0, 3) == b""


def test_what_is_removed_or_replaced_later_is_in_it(folder: Path) -> None:
    backup = Backup(folder, 1)
    (folder / "aside").write_bytes(b"new")
    (folder / "aside").rename(folder / LOG)
    assert backup.read(0, 0) == b"abc"
    (folder / LOG).unlink()
    assert backup.read(0, 0) == b"abc"


def test_nothing_stays_behind_not_even_of_a_process_that_was_killed(folder: Path) -> None:
    (folder / ".backup-1-9").mkdir()
    before = Backup(folder, 1)
    Backup(folder, 2).close()
    assert before.read(0, 0) == b"abc"
    before.close()
    assert [path.name for path in folder.iterdir() if path.name.startswith(".")] == []


@pytest.mark.parametrize(("number", "position"), [(1, 0), (-1, 0), (0, -1)])
def test_a_place_outside_is_refused(folder: Path, number: int, position: int) -> None:
    with pytest.raises(InvalidInput):
        Backup(folder, 1).read(number, position)


class RecordingPeer:
    """Keeps what it is told."""

    def __init__(self, number: int) -> None:
        self.id = number
        self.replies: asyncio.Queue[Any] = asyncio.Queue()

    def ok(self, request_id: int) -> None:
        self.replies.put_nowait(None)

    def data(self, request_id: int, *parts: Buffer) -> None:
        self.replies.put_nowait(b"".join(parts))

    def fail(self, request_id: int, error: NexoError) -> None:
        self.replies.put_nowait(error)


async def ask(backups: Backups, peer: RecordingPeer, folder: Path, request: wire.Ask) -> Any:
    backups.answer(cast("Peer", peer), folder, 1, memoryview(pack(request)))
    async with asyncio.timeout(10):
        return await peer.replies.get()


async def test_a_client_begins_reads_and_ends(folder: Path) -> None:
    backups, peer = Backups(asyncio.get_running_loop()), RecordingPeer(1)
    found = unpack(wire.BackupFiles, await ask(backups, peer, folder, wire.BackupBegin()))
    assert found.files == [(LOG, 3)]
    assert await ask(backups, peer, folder, wire.BackupRead(0, 1)) == b"bc"
    assert isinstance(await ask(backups, peer, folder, wire.BackupRead(5, 0)), InvalidInput)
    assert await ask(backups, peer, folder, wire.BackupEnd()) is None
    with pytest.raises(Conflict):
        await ask(backups, peer, folder, wire.BackupRead(0, 0))


async def test_a_backup_ends_with_its_connection(folder: Path) -> None:
    backups, peer = Backups(asyncio.get_running_loop()), RecordingPeer(1)
    await ask(backups, peer, folder, wire.BackupBegin())
    with pytest.raises(Conflict):
        await ask(backups, peer, folder, wire.BackupBegin())
    with pytest.raises(Conflict):
        await ask(backups, RecordingPeer(2), folder, wire.BackupRead(0, 0))
    backups.peer_closed(cast("Peer", peer))
    assert list(folder.glob(".backup*")) == []


async def test_a_request_that_makes_no_sense_is_refused(folder: Path) -> None:
    backups = Backups(asyncio.get_running_loop())
    with pytest.raises(ProtocolError):
        backups.answer(cast("Peer", RecordingPeer(1)), folder, 1, memoryview(b"\xc1"))
