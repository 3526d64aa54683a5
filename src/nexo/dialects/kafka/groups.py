"""Classic consumer groups: membership, offsets, and what is shown of them."""

from __future__ import annotations

from uuid import uuid4

from nexo.brokers.stream.groups.coordinator_model import Join, Joined, JoinRefused, Reply, Synced
from nexo.brokers.stream.groups.ordered_state import OffsetCommit
from nexo.dialects.kafka.codec import Message
from nexo.dialects.kafka.errors import Error, error_of, group_error
from nexo.dialects.kafka.request import Gather, Request, by_topic, stream_of
from nexo.errors import NexoError, NotFound
from nexo.names import name_of, text_of
from nexo.services.stream.groups.classic import Classic, ClassicView

_ASKS_FOR_ID = 4
"""From this version on a new member of a group joins twice."""
_SKIPS_ASSIGNMENT = 9
_MAX_METADATA = 4_096
_ID_CHARS = 64
FORBIDDEN = Error.GROUP_AUTHORIZATION_FAILED


def _classic(request: Request) -> Classic:
    return request.session.shared.streams.classic


def _group_of(text: str | None) -> str:
    """The group that a group id is."""
    return name_of(text or "")


def refusal(error: NexoError) -> Error:
    """Kafka's word for an error about a group."""
    found = error_of(error, FORBIDDEN)
    return Error.INVALID_GROUP_ID if found is Error.INVALID_TOPIC else found


# -- membership --------------------------------------------------------------------------


def join_group(request: Request) -> None:
    """Answer once all members have joined."""

    def done(reply: Reply | NexoError) -> None:
        match reply:
            case Joined():
                request.answer(_joined(request, reply))
            case JoinRefused():
                member = reply.member_id or request["member"]
                request.answer({"error": group_error(reply.error), "member": member})
            case NexoError():
                request.answer({"error": refusal(reply), "member": request["member"]})

    try:
        group = _group_of(request["group"])
        new_id = f"{request.client_id[:_ID_CHARS]}-{uuid4()}"
        _classic(request).join(request.session, group, _join(request), new_id, done)
    except NexoError as error:
        done(error)


def _join(request: Request) -> Join:
    session_ms, rows = request["session_ms"], request["protocols"] or ()
    protocols = ((row["name"] or "", bytes(row["metadata"] or b"")) for row in rows)
    return Join(
        request["protocol_type"] or "",
        tuple(protocols),
        request["member"] or "",
        request["instance"],
        session_ms,
        request["rebalance_ms"] if request.version >= 1 else session_ms,
        request.client_id,
        f"/{request.session.address}",
        request.version >= _ASKS_FOR_ID,
        request.version >= _SKIPS_ASSIGNMENT,
    )


def _joined(request: Request, reply: Joined) -> Message:
    members = [
        {"member": member, "instance": instance, "metadata": metadata}
        for member, instance, metadata in reply.members
    ]
    return {
        "generation": reply.generation,
        "protocol_type": request["protocol_type"],
        "protocol": reply.protocol,
        "leader": reply.leader,
        "skip_assignment": reply.skip_assignment,
        "member": reply.member_id,
        "members": members,
    }


def sync_group(request: Request) -> None:
    """Answer once the leader has sent the assignments."""

    def done(reply: Reply | NexoError) -> None:
        match reply:
            case Synced():
                kind = request["protocol_type"] or "consumer"
                answer = {"protocol_type": kind, "protocol": reply.protocol}
                request.answer(answer | {"assignment": reply.assignment})
            case JoinRefused():
                request.answer({"error": group_error(reply.error)})
            case NexoError():
                request.answer({"error": refusal(reply)})

    rows = request["assignments"] or ()
    assignments = {row["member"] or "": bytes(row["assignment"] or b"") for row in rows}
    try:
        _classic(request).sync(
            request.session, _group_of(request["group"]), request["member"] or "",
            request["generation"], assignments, done,
            instance=request["instance"], protocol=request["protocol"],
        )  # fmt: skip
    except NexoError as error:
        done(error)


def heartbeat(request: Request) -> None:
    """Say whether to go on, or to join again."""
    try:
        found = _classic(request).heartbeat(
            request.session, _group_of(request["group"]), request["member"] or "",
            request["generation"], request["instance"],
        )  # fmt: skip
        error = group_error(found)
    except NexoError as caught:
        error = refusal(caught)
    request.answer({"error": error})


def leave_group(request: Request) -> None:
    """Let members go."""
    rows = [{"member": request["member"], "instance": None}]
    if request.version >= 3:
        rows = request["members"] or []
    leaving = [(row["member"] or "", row["instance"]) for row in rows]
    try:
        results = _classic(request).leave(request.session, _group_of(request["group"]), leaving)
    except NexoError as found:
        request.answer({"error": refusal(found)})
        return
    errors = [group_error(result) for result in results]
    if request.version < 3:
        request.answer({"error": errors[0]})
    else:
        members = [row | {"error": error} for row, error in zip(rows, errors, strict=True)]
        request.answer({"members": members})


# -- offsets -----------------------------------------------------------------------------


def rows_of(request: Request) -> list[tuple[str, Message]]:
    """Topic and row of every partition that a request names."""
    return [
        (topic["name"] or "", part)
        for topic in request["topics"] or ()
        for part in topic["partitions"] or ()
    ]


def sound_commits(
    request: Request,
) -> tuple[list[OffsetCommit], list[tuple[str, Message]]]:
    """What may be committed, and the answer for every partition as if it were."""
    commits: list[OffsetCommit] = []
    answers: list[tuple[str, Message]] = []
    for topic, part in rows_of(request):
        index, text = part["partition"], part["metadata"] or ""
        error = Error.NONE
        try:
            name = stream_of(topic)
            found = request.session.shared.streams.admin.outline(request.session, name)
            if not 0 <= index < found.options.partitions:
                raise NotFound(f"stream {name!r} has no partition {index}")
            if len(text) > _MAX_METADATA:
                error = Error.OFFSET_METADATA_TOO_LARGE
            else:
                commits.append(OffsetCommit.up_to(name, index, part["offset"], text))
        except NexoError as caught:
            error = error_of(caught)
        answers.append((topic, {"partition": index, "error": error}))
    return commits, answers


def with_error(answers: list[tuple[str, Message]], error: Error) -> Message:
    """Answers for partitions; those without an error of their own get this one."""
    for _, row in answers:
        row["error"] = row["error"] or error
    return {"topics": by_topic(answers)}


def offset_commit(request: Request) -> None:
    """Store where members have got to; Kafka's clients commit the next offset."""
    commits, answers = sound_commits(request)

    def done(error: NexoError | None) -> None:
        request.answer(with_error(answers, Error.NONE if error is None else refusal(error)))

    try:
        group = _group_of(request["group"])
        refused = _classic(request).check_commit(
            request.session, group, request["member"] or "", request["generation"],
            request["instance"],
        )  # fmt: skip
        if refused is not None:
            request.answer(with_error(answers, group_error(refused)))
        elif commits:
            _classic(request).commit(request.session, group, commits, done)
        else:
            done(None)
    except NexoError as error:
        done(error)


def offset_fetch(request: Request) -> None:
    """What is stored of some partitions, or of all."""
    if request.version >= 8:
        groups = [_stored(request, row["group"], row["topics"]) for row in request["groups"] or ()]
        request.answer({"groups": groups})
    else:
        request.answer(_stored(request, request["group"], request["topics"]))


def _stored(request: Request, group: str | None, topics: list[Message] | None) -> Message:
    ordered, session = request.session.shared.streams.ordered, request.session
    try:
        name = _group_of(group)
        if topics is None:
            found = ordered.committed(session, name)
        else:
            wanted = [stream_of(topic["name"]) for topic in topics]
            found = [row for each in wanted for row in ordered.committed(session, name, each)]
    except NexoError as error:
        return {"group": group, "error": refusal(error), "topics": []}
    stored = dict(found)
    keys = list(stored)
    if topics is not None:
        keys = [
            (stream_of(topic["name"]), index)
            for topic in topics
            for index in topic["partitions"] or ()
        ]
    rows: list[tuple[str, Message]] = []
    for at in keys:
        kept = stored.get(at)
        row = {"partition": at[1], "offset": -1 if kept is None else kept.next_offset}
        rows.append((text_of(at[0]), row | {"metadata": "" if kept is None else kept.metadata}))
    return {"group": group, "topics": by_topic(rows)}


# -- administration ----------------------------------------------------------------------


def describe_groups(request: Request) -> None:
    """Members, their subscriptions and assignments."""
    request.answer({"groups": [_described(request, group) for group in request["groups"] or ()]})


def _described(request: Request, group: str | None) -> Message:
    try:
        view = _classic(request).view(request.session, _group_of(group))
    except NexoError as error:
        return {"group": group, "error": refusal(error)}
    members = [
        {
            "member": member.id,
            "instance": member.join.instance_id,
            "client_id": member.join.client_id,
            "client_host": member.join.client_host,
            "metadata": member.metadata.get(view.protocol, b""),
            "assignment": member.assignment,
        }
        for member in view.members
    ]
    return {"group": group, "members": members} | _shown(view)


def _shown(view: ClassicView) -> Message:
    return {"state": view.state, "protocol_type": view.protocol_type, "protocol": view.protocol}


def list_groups(request: Request) -> None:
    """All groups that the client may read."""
    states = set(request["states"] or ())
    views = _classic(request).views(request.session)
    rows = [
        _shown(view) | {"group": text_of(view.name)}
        for view in views
        if not states or view.state in states
    ]
    request.answer({"groups": rows})


def delete_groups(request: Request) -> None:
    """Forget groups that nobody reads as."""
    gather: Gather[Message] = Gather(lambda rows: request.answer({"results": rows}))
    for group in request["groups"] or ():
        _delete_one(request, group, gather)
    gather.complete()


def _delete_one(request: Request, group: str | None, gather: Gather[Message]) -> None:
    done = gather.expect()

    def deleted(error: NexoError | None) -> None:
        done({"group": group, "error": Error.NONE if error is None else refusal(error)})

    try:
        view = _classic(request).view(request.session, _group_of(group))
        if view.state == "Dead":
            done({"group": group, "error": Error.GROUP_ID_NOT_FOUND})
        elif view.state != "Empty":
            done({"group": group, "error": Error.NON_EMPTY_GROUP})
        else:
            _classic(request).delete(request.session, view.name, deleted)
    except NexoError as error:
        deleted(error)
