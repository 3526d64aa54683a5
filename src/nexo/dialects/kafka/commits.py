"""Committed offsets: store, look up, delete; what Kafka's clients commit is the next offset."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import TypeAlias

from nexo.brokers.stream.groups.kafka.model import GroupError
from nexo.brokers.stream.groups.limits import MAX_METADATA
from nexo.brokers.stream.groups.ordered_state import OffsetCommit, StoredOffset
from nexo.dialects.kafka.format.codec import KafkaMessage
from nexo.dialects.kafka.format.errors import Error, Refused, error_of, group_error, refusal
from nexo.dialects.kafka.request import (
    ROW_WORK,
    Request,
    by_topic,
    caller_of,
    errors_to,
    group_of,
    outline_with,
    rows_of,
    stream_of,
)
from nexo.errors import NexoError, NotFound
from nexo.model.names import text_of
from nexo.model.stream import StreamPartition

SoundCommits: TypeAlias = tuple[list[OffsetCommit], list[tuple[str, KafkaMessage]]]


def sound_commits(request: Request) -> Generator[int, None, SoundCommits]:
    """What may be committed, and the answer for every partition as if it were."""
    commits: list[OffsetCommit] = []
    answers: list[tuple[str, KafkaMessage]] = []
    for topic, part in rows_of(request):
        index, text = part["partition"], part["metadata"] or ""
        error = Error.NONE
        try:
            name = outline_with(request, topic, index).name
            if len(text) > MAX_METADATA:
                error = Error.OFFSET_METADATA_TOO_LARGE
            else:
                offset, epoch = part["offset"] - 1, part["leader_epoch"]
                commits.append(OffsetCommit(name, index, offset, text, epoch))
        except NexoError as caught:
            error = error_of(caught)
        answers.append((topic, {"partition": index, "error": error}))
        yield ROW_WORK
    return commits, answers


def with_error(answers: list[tuple[str, KafkaMessage]], error: Error) -> KafkaMessage:
    """Answers for partitions; those without an error of their own get this one."""
    for _, row in answers:
        row["error"] = row["error"] or error
    return {"topics": by_topic(answers)}


def check_commit(request: Request, group: str, commits: list[OffsetCommit]) -> GroupError | None:
    """Why the group takes no offsets of the member that a request names.

    `Forbidden` for a client that is no member, unless it may store these.
    """
    session, streams, caller = request.session, request.session.streams, caller_of(request)
    refused = streams.consumers.check_commit(session, group, caller)
    if caller.generation < 0:
        streams.offsets.permit(session, group, [commit.topic for commit in commits])
    return refused


def offset_commit(request: Request) -> Iterator[int]:
    commits, answers = yield from sound_commits(request)

    def done(error: NexoError | None) -> None:
        request.answer(with_error(answers, Error.NONE if error is None else refusal(error)))

    with errors_to(done):
        group = group_of(request["group"])
        refused = check_commit(request, group, commits)
        if refused is not None:
            raise Refused(group_error(refused))
        if commits:
            commit = request.session.streams.offsets.commit
            commit(request.session, group, commits, done, rewind=True, checked=True)
        else:
            done(None)


def offset_fetch(request: Request) -> Iterator[int]:
    """What is stored of some partitions, or of all."""
    if request.version < 8:
        request.answer((yield from _stored(request, request["group"], request["topics"])))
        return
    groups: list[KafkaMessage] = []
    for row in request["groups"] or ():
        groups.append((yield from _stored(request, row["group"], row["topics"])))
        yield ROW_WORK
    request.answer({"groups": groups})


def _stored(
    request: Request, group: str | None, topics: list[KafkaMessage] | None
) -> Generator[int, None, KafkaMessage]:
    streams, session = request.session.streams, request.session
    try:
        name = group_of(group)
        wanted: list[StreamPartition] = []
        for topic in topics or ():
            stream = stream_of(topic["name"])
            wanted += ((stream, index) for index in topic["partitions"] or ())
            yield ROW_WORK
        named = None if topics is None else {topic for topic, _ in wanted}
        stored = streams.offsets.committed_in(session, name, named)
        if topics is None:
            wanted = sorted(stored)
    except NexoError as error:
        return {"group": group, "error": refusal(error), "topics": []}
    open_ends = streams.transact.pending(name) if request["stable"] else ()
    rows = ((text_of(at[0]), _row(at, stored.get(at), at in open_ends)) for at in wanted)
    return {"group": group, "topics": by_topic(rows)}


def _row(at: StreamPartition, kept: StoredOffset | None, pending: bool) -> KafkaMessage:
    """One partition; a client that asks for stable offsets waits for open transactions."""
    row: KafkaMessage = {"partition": at[1], "offset": -1, "metadata": ""}
    if pending:
        return row | {"error": Error.UNSTABLE_OFFSET_COMMIT}
    if kept is None:
        return row
    found = {"offset": kept.next_offset, "metadata": kept.metadata}
    return row | found | {"leader_epoch": kept.leader_epoch}


def offset_delete(request: Request) -> None:
    """Forget offsets of topics that no member reads."""
    rows = [(topic, part["partition"]) for topic, part in rows_of(request)]
    is_read = Error.GROUP_SUBSCRIBED_TO_TOPIC

    def done(error: NexoError | None) -> None:
        if error is not None:
            request.answer({"error": refusal(error)})
            return
        answers: list[tuple[str, KafkaMessage]] = [
            (topic, {"partition": index, "error": is_read if topic in read else Error.NONE})
            for topic, index in rows
        ]
        request.answer({"topics": by_topic(answers)})

    streams, session, read = request.session.streams, request.session, set[str]()
    try:
        group = group_of(request["group"])
        view = streams.classic.view(session, group)
        if view.state == "Dead":
            raise Refused(Error.GROUP_ID_NOT_FOUND)
        read |= {topic for member in view.members for topic in member.join.topics}
        read |= set(map(text_of, streams.consumers.topics_read(group)))
        kept = [(stream_of(topic), index) for topic, index in rows if topic not in read]
        streams.offsets.forget_offsets(session, group, kept, done)
    except NotFound:
        done(None)  # it has members and has never committed
    except NexoError as error:
        done(error)
