"""The lake as the stream broker reaches it: read in a thread, one stream's reader at a time."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from nexo.config import Settings
from nexo.errors import NexoError, Unavailable
from nexo.server.dialects.nexo.stream.replay import Place, Portion, Read

if TYPE_CHECKING:
    from nexo.lake.read import LakeReader


log = logging.getLogger("nexo.stream")


class LakeTier:
    """A `nexo.server.dialects.nexo.stream.replay.Tier`."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._there = False
        self._readers: dict[int, LakeReader] = {}
        self._running: set[asyncio.Task[None]] = set()

    def reachable(self) -> bool:
        """Whether there is a catalog."""
        if not self._there:
            settings = self._settings
            local = settings.lake_folder / "catalog.db"
            self._there = bool(settings.lake_catalog) or local.exists()
        return self._there

    def read(self, place: Place, max_bytes: int, done: Read) -> None:
        """Read in a thread."""
        task = asyncio.get_running_loop().create_task(self._read(place, max_bytes, done))
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _read(self, place: Place, max_bytes: int, done: Read) -> None:
        try:
            found = await asyncio.to_thread(self._read_now, place, max_bytes)
        except NexoError as error:
            done(error)
        except Exception:
            log.exception("the lake could not be read")
            done(Unavailable("the lake could not be read: the server's log tells why"))
        else:
            done(found)

    def _read_now(self, place: Place, max_bytes: int) -> Portion:
        reader = self._readers.get(place.stream.id)
        if reader is None:
            reader = self._readers[place.stream.id] = self._open(place.stream.name)
        return reader.read(place.partition, place.offset, max_bytes)

    def _open(self, stream: str) -> LakeReader:
        try:
            from nexo.lake.catalog import Lake  # noqa: PLC0415 - heavy, and only if need be
            from nexo.lake.read import LakeReader  # noqa: PLC0415
            from nexo.lake.settings import LakeSettings  # noqa: PLC0415
        except ImportError as error:
            raise Unavailable(
                f"older records of stream {stream!r} are in the lake, and {error.name} is not "
                "installed here: pip install 'nexo-broker[spark]'"
            ) from None
        settings = LakeSettings(self._settings.lake_folder, self._settings.lake_catalog)
        return LakeReader(Lake(settings), stream)
