"""Partitions: where they are, how large they are, and that none of them moves."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator

from nexo.dialects.kafka.cluster import all_topics, described_topic
from nexo.dialects.kafka.format.codec import KafkaMessage
from nexo.dialects.kafka.format.errors import Error, error_of
from nexo.dialects.kafka.request import (
    ROW_WORK,
    Request,
    by_topic,
    in_steps,
    outline_with,
    rows_of,
    stream_of,
)
from nexo.errors import Forbidden, NexoError
from nexo.model.names import text_of

_LOG_DIR = "nexo"
_PAGE = 2_000
"""The partitions of one answer, as on Kafka."""
_SIZE_COST = 16 * 1024
"""The work of opening one partition's log, in bytes."""


def may_see_cluster(request: Request) -> bool:
    """Whether the client may know of the broker at all."""
    session = request.session
    try:
        session.streams.admin.check_knows_streams(session)
    except Forbidden:
        return False
    return True


# -- topics by page ------------------------------------------------------------------------


def describe_topic_partitions(request: Request) -> Iterator[int]:
    """Topics in order, as many partitions as are asked for at a time."""
    asked = {row["name"] or "" for row in request["topics"] or ()}
    named = sorted(asked or (text_of(outline.name) for outline in all_topics(request)))
    left, cursor = max(1, min(request["limit"], _PAGE)), request["cursor"] or {}
    begin, skipped = cursor.get("topic") or "", max(cursor.get("partition", 0), 0)
    rows: list[KafkaMessage] = []
    following: KafkaMessage | None = None
    for topic in named[bisect_left(named, begin) :]:
        if not left:
            following = {"topic": topic, "partition": 0}
            break
        row, first = _topic(request, topic), skipped if topic == begin else 0
        parts = row.get("partitions", [])
        row["partitions"] = parts[first : first + left]
        rows.append(row)
        left -= len(row["partitions"])
        yield ROW_WORK + len(parts) * 1_024
        if not left and first + len(row["partitions"]) < len(parts):
            following = {"topic": topic, "partition": first + len(row["partitions"])}
            break
    request.answer({"topics": rows, "next_cursor": following})


def _topic(request: Request, topic: str) -> KafkaMessage:
    admin = request.session.streams.admin
    try:
        return described_topic(request, admin.outline(request.session, stream_of(topic)), asks=True)
    except NexoError as error:
        return {"error": error_of(error), "name": topic}


# -- sizes ---------------------------------------------------------------------------------


def describe_log_dirs(request: Request) -> Iterator[int]:
    """How large partitions are; there is one folder. Others' are left out, as on Kafka."""
    if not may_see_cluster(request):
        request.answer({"error": Error.CLUSTER_AUTHORIZATION_FAILED})
        return
    rows: list[tuple[str, KafkaMessage]] = []
    for topic, index in _partitions(request):
        yield ROW_WORK
        try:
            name = outline_with(request, topic, index).name
            size = request.session.streams.admin.size_bytes(request.session, name, index)
        except NexoError:
            continue
        rows.append((topic, {"partition": index, "size": size}))
        yield _SIZE_COST
    request.answer({"results": [{"log_dir": _LOG_DIR, "topics": by_topic(rows)}]})


def _partitions(request: Request) -> Iterable[tuple[str, int]]:
    if request["topics"] is not None:
        return rows_of(request)
    return (
        (text_of(outline.name), index)
        for outline in all_topics(request)
        for index in range(outline.options.partitions)
    )


# -- what does not happen on one broker ----------------------------------------------------


def list_reassignments(request: Request) -> None:
    """No partition moves to another broker."""
    seen = may_see_cluster(request)
    request.answer({} if seen else {"error": Error.CLUSTER_AUTHORIZATION_FAILED})


def elect_leaders(request: Request) -> Iterator[int]:
    """Every partition has the leader that it wants."""
    if not may_see_cluster(request):
        request.answer({"error": Error.CLUSTER_AUTHORIZATION_FAILED})
        return
    rows = yield from in_steps(rows_of(request), lambda row: (row[0], _elected(request, *row)))
    request.answer({"results": by_topic(rows)})


def _elected(request: Request, topic: str, index: int) -> KafkaMessage:
    row: KafkaMessage = {"partition": index}
    try:
        outline_with(request, topic, index)
    except NexoError as error:
        return row | {"error": error_of(error), "message": error.message}
    reason = "the partition has its leader"
    return row | {"error": Error.ELECTION_NOT_NEEDED, "message": reason}
