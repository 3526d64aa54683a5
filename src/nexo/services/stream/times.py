"""Finds the offsets of a time: in the log, or before it in the lake (SPEC F4, I3)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeAlias

from nexo.brokers.stream.delivery import first_since, offset_at
from nexo.brokers.stream.registry import OpenStream
from nexo.errors import NexoError
from nexo.services.stream.replay import DroppedPosition, LakeReplay, Portion
from nexo.storage.header import parse

Located: TypeAlias = Callable[[dict[int, int] | NexoError], None]
_PROBE_BYTES = 1
"""One entry is enough to compare."""


def offsets_at(
    replay: LakeReplay, stream: OpenStream, partitions: Iterable[int], time_ms: int, done: Located
) -> None:
    """Find the first record at or after a time in some partitions; at once if the logs have it."""
    found = {index: offset_at(stream.partition(index), time_ms) for index in partitions}
    open_ends = [
        index
        for index, offset in found.items()
        if replay.first_offset(stream, index) < offset == stream.partition(index).start_offset
    ]

    def search_next(got: int | NexoError | None = None) -> None:
        if isinstance(got, NexoError):
            done(got)
            return
        if got is not None:
            found[open_ends.pop()] = got
        if open_ends:
            _Search(replay, stream, open_ends[-1], time_ms, search_next).step()
        else:
            done(found)

    search_next()


class _Search:
    """Binary search in a partition's part of the lake: times rise with offsets."""

    def __init__(
        self,
        replay: LakeReplay,
        stream: OpenStream,
        index: int,
        time_ms: int,
        done: Callable[[int | NexoError], None],
    ) -> None:
        self._replay = replay
        self._stream = stream
        self._index = index
        self._time_ms = time_ms
        self._done = done
        self._low = 0
        self._high = self._answer = stream.partition(index).start_offset

    def step(self) -> None:
        """Probe the middle; report when nothing is left to search."""
        if self._low >= self._high:
            self._done(self._answer)
            return
        self._middle = (self._low + self._high) // 2
        place = DroppedPosition(self._stream, self._index, self._middle)
        self._replay.read([(place, _PROBE_BYTES)], self._compare)

    def _compare(self, got: list[Portion] | NexoError) -> None:
        if isinstance(got, NexoError):
            self._done(got)
            return
        entries = got[0].entries
        header = parse(entries[0]) if entries else None
        if header is None or header.first_ms >= self._time_ms:
            self._high = self._middle
            if header is not None:
                self._answer = min(self._answer, header.base_offset)
                self._high = min(self._high, header.base_offset)
        elif header.last_ms < self._time_ms:
            self._low = header.next_offset
        else:
            self._done(min(self._answer, first_since(memoryview(entries[0]), self._time_ms)))
            return
        self.step()
