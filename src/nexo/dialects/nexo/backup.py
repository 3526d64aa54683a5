"""Backups of a running broker: its files as they are at one moment, kept by hard links.

A broker's process writes its files on one thread, before it replies. So the files between
two requests are what a kill at that moment would leave, which recovery handles. Hard links
preserve them: logs only grow, and only the part that existed is read; other files are
replaced as a whole, never changed. Indexes are left out, because they are rebuilt.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from nexo.dialects.nexo.handlers import Peer
from nexo.errors import Conflict, InvalidInput, Unavailable
from nexo.protocol import backup as wire
from nexo.protocol.messages import pack
from nexo.storage.disk.files import link_or_copy

_PREFIX = ".backup-"
_LEFT_OUT = (".idx", ".new", ".sock", ".lock")


class Backup:
    """The files of one folder as they were when this was made, until `close`.

    The broker is blocked meanwhile, so each file costs only one link, named by its number.
    """

    def __init__(self, folder: Path, number: int) -> None:
        _remove_leftovers(folder)
        self._folder = folder / f"{_PREFIX}{os.getpid()}-{number}"
        self._folder.mkdir()
        self.files: list[tuple[str, int]] = []
        """Path within the folder, and length."""
        try:
            self._keep_all(str(folder), str(self._folder))
        except OSError:
            self.close()
            raise

    def _keep_all(self, root: str, target: str) -> None:
        for path, size in _data_files(root):
            link_or_copy(path, f"{target}/{len(self.files)}")
            self.files.append((path[len(root) + 1 :], size))

    def read(self, number: int, position: int) -> bytes:
        """Some bytes of a file, up to its length when the backup began."""
        if not 0 <= number < len(self.files) or position < 0:
            raise InvalidInput(f"the backup has no file {number} with byte {position}")
        size = self.files[number][1]
        with (self._folder / str(number)).open("rb") as file:
            file.seek(position)
            return file.read(max(0, min(wire.READ_BYTES, size - position)))

    def close(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)


def _data_files(folder: str) -> Iterator[tuple[str, int]]:
    """Path and length of every file in the backup."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                if not entry.name.startswith("."):
                    yield from _data_files(entry.path)
            elif not entry.name.endswith(_LEFT_OUT):
                yield entry.path, entry.stat().st_size


def _remove_leftovers(folder: Path) -> None:
    """Remove the backups of processes that have ended."""
    for path in folder.glob(f"{_PREFIX}*"):
        if not path.name.startswith(f"{_PREFIX}{os.getpid()}-"):
            shutil.rmtree(path, ignore_errors=True)


class Backups:
    """The backups in progress in one host; each belongs to a connection."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._open: dict[tuple[int, Path], Backup] = {}

    def answer(self, peer: Peer, folder: Path, request_id: int, payload: memoryview) -> None:
        """Serve one request about the broker whose files are in ``folder``."""
        key = peer.id, folder
        match wire.unpack_ask(payload):
            case wire.BackupBegin():
                backup = self._begin(key)
                peer.data(request_id, pack(wire.BackupFiles(backup.files)))
            case wire.BackupRead(number, position):
                self._read(peer, request_id, partial(self._of(key).read, number, position))
            case wire.BackupEnd():
                self._of(key)
                self._open.pop(key).close()
                peer.ok(request_id)

    def _begin(self, key: tuple[int, Path]) -> Backup:
        if key in self._open:
            raise Conflict("this connection has a backup in progress")
        try:
            self._open[key] = Backup(key[1], key[0])
        except OSError as error:
            raise Unavailable(f"the files cannot be linked: {error.strerror}") from None
        return self._open[key]

    def _of(self, key: tuple[int, Path]) -> Backup:
        if key not in self._open:
            raise Conflict("this connection has no backup: begin one")
        return self._open[key]

    def _read(self, peer: Peer, request_id: int, read: partial[bytes]) -> None:
        """Read in a thread: a cold disk must not block the broker."""

        def done(future: asyncio.Future[bytes]) -> None:
            error = future.exception()
            if error is None:
                peer.data(request_id, future.result())
            elif isinstance(error, InvalidInput):
                peer.fail(request_id, error)
            else:
                peer.fail(request_id, Unavailable(f"the backup cannot be read: {error}"))

        self._loop.run_in_executor(None, read).add_done_callback(done)

    def peer_closed(self, peer: Peer) -> None:
        """End the connection's backup."""
        for key in [key for key in self._open if key[0] == peer.id]:
            self._open.pop(key).close()
