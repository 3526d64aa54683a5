"""Fetch: stored batches leave as they are, ours as Kafka's."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from struct import Struct
from typing import Any
from uuid import UUID

from nexo.batch.kafka_write import gap
from nexo.dialects.kafka.format.errors import Error, error_of
from nexo.dialects.kafka.format.wire import I16, I32, write_length
from nexo.dialects.kafka.request import ROW_WORK, Request, outline_with, rows_of
from nexo.errors import NexoError
from nexo.services.stream.reading import ReadFrom, RecordSlice

_FLEXIBLE = 12
_BY_ID = 13
_PARTITION = Struct(">ihqq")
_I64 = Struct(">q")
_NO_OFFSET = -1


@dataclass(slots=True, eq=False)
class Wanted:
    """One partition of a fetch, and what is there."""

    topic: str | UUID
    """Its name, or its id in later versions."""
    partition: int
    offset: int
    error: Error = Error.NONE
    slice: RecordSlice | None = None


def fetch(request: Request) -> Iterator[int]:
    """Read several partitions, waiting for records if there are too few."""
    if request["session_id"]:
        error = Error.FETCH_SESSION_ID_NOT_FOUND  # none is ever given out: fetches are whole
        request.answer({"error": error, "topics": []})
        return
    reading, session = request.session.streams.reading, request.session
    rows = rows_of(request, by_id=request.version >= _BY_ID)
    wanted = [Wanted(topic, part["partition"], part["offset"]) for topic, part in rows]
    asked: dict[Wanted, ReadFrom] = {}
    for one in wanted:
        if (place := _place(request, one)) is not None:
            asked[one] = place
        yield ROW_WORK

    def done(found: list[RecordSlice] | NexoError) -> None:
        if isinstance(found, NexoError):
            for one in asked:
                one.error = error_of(found)
        else:
            for one, portion in zip(asked, found, strict=True):
                one.slice = portion
        _answer(request, wanted)

    if not asked:
        _answer_empty(request, wanted)
        return
    wait_ms = request["max_wait_ms"] if len(asked) == len(wanted) else 0
    min_bytes = request["min_bytes"]
    largest = max(1, *(part["max_bytes"] for _, part in rows))
    max_bytes = min(request["max_bytes"], largest * len(asked))
    try:
        reading.read(
            session, request.pending.number, list(asked.values()), done, max(max_bytes, 1),
            max(wait_ms, 0) if min_bytes > 0 else 0, max(min_bytes, 1), as_stored=True,
        )  # fmt: skip
    except NexoError as error:
        done(error)


def _place(request: Request, one: Wanted) -> ReadFrom | None:
    try:
        name = outline_with(request, one.topic, one.partition).name
        place = ReadFrom(name, one.partition, one.offset)
        request.session.streams.reading.check(request.session, place)
    except NexoError as error:
        one.error = error_of(error)
        return None
    return place


# -- the response, by hand, so that records are never copied -----------------------------


def _answer_empty(request: Request, wanted: list[Wanted]) -> None:
    """Nothing can be read: answer later, as the client would ask again at once, without end."""
    if not wanted and request["max_wait_ms"] > 0:
        delay_s = min(request["max_wait_ms"], 1_000) / 1_000
        loop = request.session.state.host.loop
        loop.call_later(delay_s, _answer, request, wanted)
    else:
        _answer(request, wanted)


def _answer(request: Request, wanted: list[Wanted]) -> None:
    request.session.work(_answer_steps(request, wanted))


def _answer_steps(request: Request, wanted: list[Wanted]) -> Iterator[int]:
    version, flexible = request.version, request.version >= _FLEXIBLE
    parts: list[Any] = []
    out = bytearray(4)
    if version >= 7:
        out += bytes(6)  # no error, and no session: every fetch is whole
    topics: dict[str | UUID, list[Wanted]] = {}
    for one in wanted:
        topics.setdefault(one.topic, []).append(one)
    write_length(out, len(topics), I32, flexible)
    for topic, rows in topics.items():
        if isinstance(topic, UUID):
            out += topic.bytes
        else:
            raw = topic.encode()
            write_length(out, len(raw), I16, flexible)
            out += raw
        write_length(out, len(rows), I32, flexible)
        for one in rows:
            out = _write(request, one, out, parts)
            yield ROW_WORK
        _tags(out, version)
    _tags(out, version)
    request.answer_parts([*parts, out])


def _write(request: Request, one: Wanted, out: bytearray, parts: list[Any]) -> bytearray:
    """One partition; returns the buffer for what follows."""
    version, found = request.version, one.slice
    flexible = version >= _FLEXIBLE
    stable = found.stable_offset if found else _NO_OFFSET
    out += _PARTITION.pack(one.partition, one.error, stable, stable)
    if version >= 5:
        out += _I64.pack(found.start_offset if found else _NO_OFFSET)
    # Only committed records are sent, so no aborted transaction is named.
    write_length(out, 0, I32, flexible)
    if version >= 11:
        out += I32.pack(-1)
    batches = _batches(request, one)
    write_length(out, sum(map(len, batches)), I32, flexible)
    if batches:
        parts += (out, *batches)
        out = bytearray()
    _tags(out, version)
    return out


def _batches(request: Request, one: Wanted) -> list[Any]:
    found = one.slice
    if found is None:
        return []
    if not found.entries:
        missing = found.next_offset - one.offset
        return [gap(one.offset, missing)] if missing > 0 else []
    encode = request.session.state.encodings.parts
    return [part for entry in found.entries for part in encode(entry)]


def _tags(out: bytearray, version: int) -> None:
    if version >= _FLEXIBLE:
        out.append(0)
