"""Offsets that the log no longer holds, read from the lake in a thread (SPEC I3)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

from nexo.brokers.stream.registry import Stream
from nexo.config import Settings
from nexo.errors import NexoError, Unavailable

if TYPE_CHECKING:
    from nexo.lake.read import LakeReader, Replayed

Done: TypeAlias = "Callable[[list[Replayed] | NexoError], None]"
Ask: TypeAlias = tuple[Stream, int, int, int]
"""``stream, partition, offset, max bytes``."""


class Replay:
    """The lake behind the streams, as far as this server can reach it."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._there = False
        self._readers: dict[int, LakeReader] = {}
        self._running: set[asyncio.Task[None]] = set()

    def first_offset(self, stream: Stream, index: int) -> int:
        """The first offset that readers may ask for; gaps in front are stepped over."""
        start = stream.partition(index).start_offset
        return 0 if start and stream.tiered[index] >= start and self._reachable() else start

    def _reachable(self) -> bool:
        if not self._there:
            settings = self._settings
            local = settings.lake_folder / "catalog.db"
            self._there = bool(settings.lake_catalog) or local.exists()
        return self._there

    def read(self, asks: list[Ask], done: Done) -> None:
        """Read each place; ``done`` is called in the event loop, later."""
        task = asyncio.get_running_loop().create_task(self._read(asks, done))
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _read(self, asks: list[Ask], done: Done) -> None:
        try:
            found = [await asyncio.to_thread(self._read_one, *ask) for ask in asks]
        except NexoError as error:
            done(error)
        else:
            done(found)

    def _read_one(self, stream: Stream, index: int, offset: int, max_bytes: int) -> Replayed:
        reader = self._readers.get(stream.id)
        if reader is None:
            reader = self._readers[stream.id] = self._open(stream.name)
        return reader.read(index, offset, max_bytes)

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
