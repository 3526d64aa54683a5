"""Backups of a running broker: its files as they are between two requests, kept by hard links.

Indexes are left out, because they are rebuilt.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from nexo.access.grants import Extent
from nexo.access.permit import ADMIN, permit
from nexo.errors import Conflict, InvalidInput, Unavailable
from nexo.model import Broker
from nexo.services.connection import Connection, Done
from nexo.storage.disk.freezing import freeze
from nexo.storage.ports import Frozen

READ_BYTES = 256 * 1024
"""The most that one read returns, so that a backup leaves room for other requests."""
_LEFT_OUT = (".idx", ".new", ".sock", ".lock")


class Backups:
    """The backups in progress in one process; each belongs to a connection, and ends with it."""

    def __init__(self, loop: asyncio.AbstractEventLoop, folders: Mapping[Broker, Path]) -> None:
        self._loop = loop
        self._folders = folders
        self._open: dict[tuple[int, Broker], Frozen] = {}

    def begin(self, connection: Connection, broker: Broker) -> list[tuple[str, int]]:
        """Freeze the broker's files: the path of each within its folder, and its length."""
        _permit(connection, broker)
        key = connection.id, broker
        if key in self._open:
            raise Conflict("this connection has a backup in progress")
        try:
            frozen = self._open[key] = freeze(self._folders[broker], _left_out)
        except OSError as error:
            raise Unavailable(f"the files cannot be linked: {error.strerror}") from None
        return frozen.files

    def read(
        self,
        connection: Connection,
        broker: Broker,
        number: int,
        position: int,
        done: Done[bytes],
    ) -> None:
        """Some bytes of a file of the list, up to its length when the backup began.

        They are read in a thread: a cold disk must not block the broker.
        """
        _permit(connection, broker)
        frozen = self._of(connection, broker)
        if not 0 <= number < len(frozen.files) or position < 0:
            raise InvalidInput(f"the backup has no file {number} with byte {position}")

        def finished(future: asyncio.Future[bytes]) -> None:
            error = future.exception()
            if error is None:
                done(future.result())
            else:
                done(Unavailable(f"the backup cannot be read: {error}"))

        read = partial(_read, frozen, number, position)
        self._loop.run_in_executor(None, read).add_done_callback(finished)

    def end(self, connection: Connection, broker: Broker) -> None:
        """Release the files."""
        _permit(connection, broker)
        self._of(connection, broker).close()
        del self._open[connection.id, broker]

    def connection_closed(self, connection: Connection) -> None:
        """End the connection's backups."""
        for key in [key for key in self._open if key[0] == connection.id]:
            self._open.pop(key).close()

    def _of(self, connection: Connection, broker: Broker) -> Frozen:
        frozen = self._open.get((connection.id, broker))
        if frozen is None:
            raise Conflict("this connection has no backup: begin one")
        return frozen


def _permit(connection: Connection, broker: Broker) -> None:
    permit(connection.identity, broker, ADMIN, "", Extent.PREFIX)


def _left_out(entry: os.DirEntry[str]) -> bool:
    return entry.name.startswith(".") if entry.is_dir() else entry.name.endswith(_LEFT_OUT)


def _read(frozen: Frozen, number: int, position: int) -> bytes:
    size = frozen.files[number][1]
    with frozen.link(number).open("rb") as file:
        file.seek(position)
        return file.read(max(0, min(READ_BYTES, size - position)))
