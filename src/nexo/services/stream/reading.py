"""Reading without a group: by partition and offset, or by key."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from nexo.errors import InvalidInput, NexoError
from nexo.protocol import stream as wire
from nexo.protocol.frames import Buffer
from nexo.protocol.ops import Op
from nexo.services.service import Handler, Peer
from nexo.services.stream.bounds import MAX_READ_BYTES, MAX_WAIT_MS, check_not_negative
from nexo.services.stream.core import Core
from nexo.services.stream.replay import Place, Portion
from nexo.services.stream.times import offsets_at
from nexo.services.waiting import Wait

READERS = ""
"""The channel of a stream's plain reads; no group has that name."""


class Found(NamedTuple):
    """What readers get."""

    heads: list[tuple[int, int, int]]
    """Per place: first offset, stable offset, where to read on."""
    batches: list[int]
    """The place of each batch."""
    parts: list[Buffer]


class Reading:
    """S_READ, S_READ_MANY and S_OFFSETS_AT."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self.handlers: dict[int, Handler] = {
            Op.S_READ: self.read,
            Op.S_READ_MANY: self.read_many,
            Op.S_OFFSETS_AT: self.offsets_at,
        }

    def read(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        """Batches from an offset on; wait for some at the end."""
        ask = wire.unpack(wire.Read, payload)
        place = self._place(ask.stream, ask.partition, ask.offset, ask.created_ms)

        def reply(found: Found) -> None:
            head = wire.pack_headed(wire.ReadReply(*found.heads[0]))
            peer.data(request_id, head, *found.parts)

        self._answer(peer, request_id, [place], ask.max_bytes, ask.wait_ms, reply)

    def read_many(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        """Batches from several places, each getting its share; wait for some."""
        ask = wire.unpack(wire.ReadMany, payload)
        if not ask.places:
            raise InvalidInput("nothing to read: name at least one partition")
        meant = ask.created_ms
        places = [self._place(*place, meant.get(place[0], 0)) for place in ask.places]

        def reply(found: Found) -> None:
            head = wire.pack_headed(wire.ReadManyReply(found.heads, found.batches))
            peer.data(request_id, head, *found.parts)

        self._answer(peer, request_id, places, ask.max_bytes, ask.wait_ms, reply)

    def offsets_at(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        """Find a time in every partition."""
        ask = wire.unpack(wire.OffsetsAt, payload)
        stream = self._core.engine.streams.get(ask.stream)

        def done(found: dict[int, int] | NexoError) -> None:
            if isinstance(found, NexoError):
                peer.fail(request_id, found)
            else:
                peer.data(request_id, wire.pack([found[index] for index in sorted(found)]))

        offsets_at(self._core.replay, stream, ask.time_ms, done)

    def _place(self, name: str, index: int, offset: int, created_ms: int) -> Place:
        stream = self._core.engine.streams.get(name)
        stream.check_incarnation(created_ms)
        self._core.replay.check_offset(stream, index, offset)
        return Place(stream, index, offset)

    def _answer(
        self,
        peer: Peer,
        request_id: int,
        places: list[Place],
        max_bytes: int,
        wait_ms: int,
        reply: Callable[[Found], None],
    ) -> None:
        check_not_negative(wait_ms, "wait_ms")
        if any(map(_is_cold, places)):
            self._replay(peer, request_id, places, max_bytes, reply)
            return

        def attempt() -> Found | None:
            found = look(places, max_bytes)
            return found if found.parts else None

        def nothing() -> Found:
            return look(places, max_bytes)

        def done(found: Found | NexoError) -> None:
            if isinstance(found, NexoError):
                peer.fail(request_id, found)
            else:
                reply(found)

        due_ms = self._core.now_ms + min(wait_ms, MAX_WAIT_MS)
        channels = tuple((number, READERS) for number in {place.stream.id for place in places})
        wait = Wait(peer, request_id, channels, due_ms, attempt, done, nothing, each=True)
        self._core.answer_or_wait(wait)

    def _replay(
        self,
        peer: Peer,
        request_id: int,
        places: list[Place],
        max_bytes: int,
        reply: Callable[[Found], None],
    ) -> None:
        """Answer with what the lake has, and with what is hot beside it."""
        cold = [number for number, place in enumerate(places) if _is_cold(place)]
        share = min(max_bytes, MAX_READ_BYTES) // len(places)

        def done(found: list[Portion] | NexoError) -> None:
            if isinstance(found, NexoError):
                peer.fail(request_id, found)
                return
            try:
                for place in places:
                    self._core.check_there(place.stream)
                reply(look(places, max_bytes, dict(zip(cold, found, strict=True))))
            except NexoError as error:
                peer.fail(request_id, error)

        self._core.replay.read([(places[number], share) for number in cold], done)


def _is_cold(place: Place) -> bool:
    """Whether the log no longer holds it, but the lake does."""
    return place.offset < place.stream.partition(place.partition).start_offset


def look(
    places: list[Place], max_bytes: int, replayed: Mapping[int, Portion] | None = None
) -> Found:
    """What is there at each place, as far as its share of ``max_bytes`` goes."""
    found = Found([], [], [])
    share = min(max_bytes, MAX_READ_BYTES) // len(places)
    for number, place in enumerate(places):
        partition, at = place.stream.partition(place.partition), place.offset
        old = (replayed or {}).get(number)
        if old is not None:
            found.parts.extend(old.entries)
            found.batches.extend([number] * len(old.entries))
            found.heads.append((partition.start_offset, partition.stable_offset, old.next_offset))
            continue
        for header, entry in partition.read(at, share):
            found.parts.append(entry)
            found.batches.append(number)
            at = header.next_offset
        if at == place.offset:
            # Nothing readable up to the end: what lies there was rolled back.
            at = max(at, partition.stable_offset)
        found.heads.append((partition.start_offset, partition.stable_offset, at))
    return found
