"""Offsets that the log no longer holds, read from the lake (SPEC I3)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from nexo.brokers.stream.chunks import Chunk
from nexo.brokers.stream.registry import OpenStream
from nexo.errors import NexoError, OffsetOutOfRange, Unavailable
from nexo.services.connection import Done

FETCH_BYTES = 1024**2
"""How much is read ahead for groups; the lake may return more, because it reads row groups."""


class StreamPosition(NamedTuple):
    """An offset of one partition; the log may have dropped it."""

    stream: OpenStream
    partition: int
    offset: int


class Portion(Protocol):
    """Entries as the log would hold them; missing offsets up to ``next_offset`` do not exist."""

    @property
    def entries(self) -> Sequence[bytes]: ...

    @property
    def next_offset(self) -> int:
        """Where to continue reading."""


class ColdTier(Protocol):
    """Storage for records that logs have dropped."""

    def reachable(self) -> bool:
        """Whether this server can reach it at all."""

    def read(self, place: StreamPosition, max_bytes: int, done: Done[Portion]) -> None:
        """Read from a place on; ``done`` is called in the event loop, later."""


class InLake(NexoError):
    """The records must be fetched first: see `LakeReplay.fetch`. Never sent to clients."""

    def __init__(self, place: StreamPosition) -> None:
        super().__init__(f"offset {place.offset} of stream {place.stream.name!r} is in the lake")
        self.place = place


class LakeReplay:
    """Reads from the lake what the streams' logs no longer hold."""

    def __init__(self, tier: ColdTier) -> None:
        self.tier = tier
        self._fetching: dict[tuple[int, int, int], list[Done[None]]] = {}

    def first_offset(self, stream: OpenStream, index: int) -> int:
        """The first offset that readers may ask for; gaps in front are skipped."""
        start = stream.partition(index).start_offset
        in_lake = start and stream.tiered[index] >= start and self.tier.reachable()
        return 0 if in_lake else start

    def check_offset(self, stream: OpenStream, index: int, offset: int) -> None:
        """Raise `OffsetOutOfRange` unless reading may start there, in the lake or in the log."""
        first, end = self.first_offset(stream, index), stream.partition(index).next_offset
        if not first <= offset <= end:
            raise OffsetOutOfRange(
                f"offset {offset} is outside partition {index} of stream {stream.name!r}, "
                f"which takes {first}..{end}"
            )

    def read(
        self,
        asks: list[tuple[StreamPosition, int]],
        done: Done[list[Portion]],
        max_bytes: int = FETCH_BYTES,
    ) -> None:
        """Read up to the given bytes at each place, one after another.

        Stops after ``max_bytes``: places not read by then are missing from the answer.
        """
        found: list[Portion] = []
        size = 0

        def read_on(got: Portion | NexoError) -> None:
            if isinstance(got, NexoError):
                done(got)
                return
            nonlocal size
            found.append(got)
            size += sum(map(len, got.entries))
            if len(found) == len(asks) or size >= max_bytes:
                done(found)
            else:
                self._read(*asks[len(found)], read_on)

        self._read(*asks[0], read_on)

    def fetch(self, place: StreamPosition, done: Done[None]) -> None:
        """Load a place into its partition's cache; requests for the same place share the work."""
        key = place.stream.id, place.partition, place.offset
        waiting = self._fetching.setdefault(key, [])
        waiting.append(done)
        if len(waiting) > 1:
            return

        def warm(got: Portion | NexoError) -> None:
            error = got if isinstance(got, NexoError) else None
            if not isinstance(got, NexoError):
                chunk = Chunk.replayed(got.entries, place.offset, got.next_offset)
                place.stream.partition(place.partition).warm(chunk)
            for each in self._fetching.pop(key):
                each(error)

        self._read(place, FETCH_BYTES, warm)

    def _read(self, place: StreamPosition, max_bytes: int, done: Done[Portion]) -> None:
        def checked(got: Portion | NexoError) -> None:
            if not isinstance(got, NexoError) and got.next_offset <= place.offset:
                got = Unavailable(
                    f"the lake does not have offset {place.offset} of stream "
                    f"{place.stream.name!r}, partition {place.partition}: run the pipeline"
                )
            done(got)

        self.tier.read(place, max_bytes, checked)
