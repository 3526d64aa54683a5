"""Finds where to start: at either end, at an offset, or at a time (SPEC F4, I3)."""

from __future__ import annotations

from collections.abc import Iterable

from nexo.brokers.stream.delivery import first_since, offset_at
from nexo.brokers.stream.registry import OpenStream
from nexo.errors import NexoError
from nexo.model.stream import StartPosition
from nexo.services.connection import Done
from nexo.services.stream.replay import LakeReplay, Portion, StreamPosition
from nexo.storage.header import parse

_PROBE_BYTES = 1
"""One entry is enough to compare."""


def positions(replay: LakeReplay, stream: OpenStream, to: StartPosition) -> dict[int, int]:
    """An offset per partition, or per named one if ``to`` is a mapping.

    `OffsetOutOfRange` for one that the partition does not have.
    """
    parts = stream.partitions()
    if to == "beginning":
        return {i: replay.first_offset(stream, i) for i in range(len(parts))}
    if to == "end":
        return {i: part.next_offset for i, part in enumerate(parts)}
    wanted = to if isinstance(to, dict) else dict.fromkeys(range(len(parts)), int(to))
    for index, offset in wanted.items():
        replay.check_offset(stream, index, offset)
    return wanted


def offsets_at(
    replay: LakeReplay,
    stream: OpenStream,
    partitions: Iterable[int],
    time_ms: int,
    done: Done[dict[int, int]],
) -> None:
    """Find the first record at or after a time in some partitions; at once if the logs have it."""
    found = {index: offset_at(stream.partition(index), time_ms) for index in partitions}
    open_ends = [
        index
        for index, offset in found.items()
        if replay.first_offset(stream, index) < offset == stream.partition(index).start_offset
    ]

    def search_next() -> None:
        if open_ends:
            _search(replay, stream, open_ends[-1], time_ms, searched)
        else:
            done(found)

    def searched(got: int | NexoError) -> None:
        if isinstance(got, NexoError):
            done(got)
        else:
            found[open_ends.pop()] = got
            search_next()

    search_next()


def _search(
    replay: LakeReplay, stream: OpenStream, index: int, time_ms: int, done: Done[int]
) -> None:
    """Binary search in a partition's part of the lake: times rise with offsets."""
    low = 0
    high = answer = stream.partition(index).start_offset

    def probe() -> None:
        """Look at the middle; report when nothing is left to search."""
        if low >= high:
            done(answer)
            return
        place = StreamPosition(stream, index, (low + high) // 2)
        replay.read([(place, _PROBE_BYTES)], lambda got: compare(place.offset, got))

    def compare(middle: int, got: list[Portion] | NexoError) -> None:
        nonlocal low, high, answer
        if isinstance(got, NexoError):
            done(got)
            return
        entries = got[0].entries
        header = parse(entries[0]) if entries else None
        if header is None:
            high = middle
        elif header.first_ms >= time_ms:
            high = min(middle, header.base_offset)
            answer = min(answer, header.base_offset)
        elif header.last_ms < time_ms:
            low = header.next_offset
        else:
            done(min(answer, first_since(memoryview(entries[0]), time_ms)))
            return
        probe()

    probe()
