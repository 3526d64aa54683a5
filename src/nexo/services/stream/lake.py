"""The stream broker's access to the lake: read in a thread, one reader per stream at a time."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from threading import Lock
from typing import TYPE_CHECKING

from nexo.brokers.stream.registry import OpenStream
from nexo.config import Settings
from nexo.errors import NexoError, Unavailable
from nexo.lake.settings import LakeSettings, this_host
from nexo.services.connection import Done
from nexo.services.stream.replay import Portion, StreamPosition

if TYPE_CHECKING:
    from nexo.lake.reading.replay import LakeReader


MAX_READERS = 64
"""Streams whose tables are kept open."""

log = logging.getLogger("nexo.stream")


def lake_place(settings: Settings) -> dict[str, str]:
    """Where the lake is, for commands on the same machine."""
    host = this_host()
    return {"host": host, "folder": str(settings.lake_folder), "catalog": settings.lake_catalog}


class LakeTier:
    """A `nexo.services.stream.replay.ColdTier`."""

    def __init__(self, settings: Settings) -> None:
        self._where = LakeSettings(settings.lake_folder, settings.lake_catalog)
        self._there = False
        self._readers: OrderedDict[int, LakeReader] = OrderedDict()
        """By stream; the least recently used first."""
        self._opening = Lock()
        self._running: set[asyncio.Task[None]] = set()

    def reachable(self) -> bool:
        """Whether there is a catalog."""
        self._there = self._there or self._where.exists
        return self._there

    def read(self, place: StreamPosition, max_bytes: int, done: Done[Portion]) -> None:
        """Read in a thread."""
        task = asyncio.get_running_loop().create_task(self._read(place, max_bytes, done))
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _read(self, place: StreamPosition, max_bytes: int, done: Done[Portion]) -> None:
        try:
            found = await asyncio.to_thread(self._read_now, place, max_bytes)
        except NexoError as error:
            done(error)
        except Exception:
            log.exception("the lake could not be read")
            done(Unavailable("the lake could not be read: see the server's log"))
        else:
            done(found)

    def _read_now(self, place: StreamPosition, max_bytes: int) -> Portion:
        reader = self._reader(place.stream)
        return reader.read(place.partition, place.offset, max_bytes)

    def _reader(self, stream: OpenStream) -> LakeReader:
        with self._opening:
            reader = self._readers.pop(stream.id, None) or self._open(stream.name)
            self._readers[stream.id] = reader
            while len(self._readers) > MAX_READERS:
                self._readers.popitem(last=False)
            return reader

    def _open(self, stream: str) -> LakeReader:
        try:
            from nexo.lake.catalog import Lake  # noqa: PLC0415 - heavy, and rarely needed
            from nexo.lake.reading.replay import LakeReader  # noqa: PLC0415
        except ImportError as error:
            raise Unavailable(
                f"older records of stream {stream!r} are in the lake, and {error.name} is not "
                "installed here: pip install 'nexo-broker[spark]'"
            ) from None
        return LakeReader(Lake(self._where), stream)
