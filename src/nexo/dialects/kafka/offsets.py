"""ListOffsets: where partitions begin and end, and where a time lies in them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

from nexo.batch import decode
from nexo.dialects.kafka.format.codec import KafkaMessage
from nexo.dialects.kafka.format.errors import Error, error_of
from nexo.dialects.kafka.request import ROW_WORK, Gather, Request, by_topic, errors_to, stream_of
from nexo.errors import NexoError
from nexo.model.stream import PartitionInfo
from nexo.services.stream.reading import ReadFrom, RecordSlice

LATEST, EARLIEST, GREATEST, EARLIEST_LOCAL, LATEST_TIERED = -1, -2, -3, -4, -5
"""What stands for a time: both ends, the greatest time, and the border between log and lake."""
_ONE_BATCH = 1

AnswerPartition: TypeAlias = Callable[[KafkaMessage], None]


def list_offsets(request: Request) -> Iterator[int]:
    gather: Gather[tuple[str, KafkaMessage]] = Gather(
        lambda rows: request.answer({"topics": by_topic(rows)})
    )
    for topic in request["topics"] or ():
        name, seen = topic["name"] or "", set[int]()
        bounds = _bounds(request, name)
        for part in topic["partitions"] or ():
            answer = _answer(name, part["partition"], gather)
            if part["partition"] in seen:
                answer({"error": Error.INVALID_REQUEST})
            else:
                _list_one(request, name, part, bounds, answer)
            seen.add(part["partition"])
            yield ROW_WORK
        yield ROW_WORK
    gather.complete()


def _answer(topic: str, index: int, gather: Gather[tuple[str, KafkaMessage]]) -> AnswerPartition:
    done = gather.expect()
    return lambda row: done((topic, {"partition": index} | row))


def _bounds(request: Request, topic: str) -> Sequence[PartitionInfo] | Error:
    """All partitions of a topic, or why they cannot be shown."""
    try:
        return request.session.streams.admin.describe(request.session, stream_of(topic)).partitions
    except NexoError as error:
        return error_of(error)


def _list_one(
    request: Request,
    topic: str,
    part: KafkaMessage,
    bounds: Sequence[PartitionInfo] | Error,
    answer: AnswerPartition,
) -> None:
    index, time_ms = part["partition"], part["timestamp"]
    if isinstance(bounds, Error):
        answer({"error": bounds})
    elif not 0 <= index < len(bounds):
        answer({"error": Error.UNKNOWN_TOPIC_OR_PARTITION})
    elif time_ms == GREATEST:
        _find(request, topic, index, bounds[index].last_ms, bounds[index], answer)
    elif time_ms >= 0:
        _find(request, topic, index, time_ms, bounds[index], answer)
    else:
        answer(_end(bounds[index], time_ms))


def _end(bounds: PartitionInfo, which: int) -> KafkaMessage:
    ends = {
        LATEST: bounds.stable_offset,
        EARLIEST: bounds.start_offset,
        EARLIEST_LOCAL: bounds.hot_offset,
        LATEST_TIERED: bounds.tiered_offset - 1,
    }
    return (
        {"offset": ends[which], "leader_epoch": 0}
        if which in ends
        else {"error": Error.INVALID_REQUEST}
    )


def _find(
    request: Request,
    topic: str,
    index: int,
    time_ms: int,
    bounds: PartitionInfo,
    answer: AnswerPartition,
) -> None:
    """The first record at or after a time, with its own time."""
    reading, session, name = request.session.streams.reading, request.session, ""

    def located(found: int | NexoError) -> None:
        if isinstance(found, NexoError):
            answer({"error": error_of(found)})
        elif found >= bounds.stable_offset:
            answer({})
        else:
            place = ReadFrom(name, index, found)
            reading.read(
                session, request.pending.number, [place], lambda got: timed(found, got), _ONE_BATCH
            )

    def timed(offset: int, got: list[RecordSlice] | NexoError) -> None:
        if isinstance(got, NexoError):
            answer({"error": error_of(got)})
        else:
            found_ms = _time_of(got[0], offset, time_ms)
            answer({"offset": offset, "timestamp": found_ms, "leader_epoch": 0})

    with errors_to(located):
        name = stream_of(topic)
        reading.offset_at(session, name, index, time_ms, located)


def _time_of(found: RecordSlice, offset: int, asked_ms: int) -> int:
    if not found.entries:
        return asked_ms
    batch = decode(found.entries[0])
    at = batch.index_of(offset)
    return batch.timestamps()[at] if at < len(batch) else asked_ms


def offset_for_leader_epoch(request: Request) -> Iterator[int]:
    """There has been one leader ever, so all that is there is of its epoch."""
    rows: list[tuple[str, KafkaMessage]] = []
    for topic in request["topics"] or ():
        bounds = _bounds(request, topic["name"] or "")
        for part in topic["partitions"] or ():
            rows.append((topic["name"] or "", _epoch_end(part["partition"], bounds)))
            yield ROW_WORK
        yield ROW_WORK
    request.answer({"topics": by_topic(rows)})


def _epoch_end(index: int, bounds: Sequence[PartitionInfo] | Error) -> KafkaMessage:
    row: KafkaMessage = {"partition": index}
    if isinstance(bounds, Error):
        return row | {"error": bounds}
    if not 0 <= index < len(bounds):
        return row | {"error": Error.UNKNOWN_TOPIC_OR_PARTITION}
    return row | {"epoch": 0, "end_offset": bounds[index].stable_offset}
