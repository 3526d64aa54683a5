"""Classic consumer groups: membership, and what is shown of all groups."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from uuid import uuid4

from nexo.brokers.stream.groups.kafka.model import Join, Joined, JoinRefused, MemberReply, Synced
from nexo.brokers.stream.groups.limits import MAX_MEMBER_BYTES
from nexo.dialects.kafka.describing.operations import on_group
from nexo.dialects.kafka.format.codec import KafkaMessage
from nexo.dialects.kafka.format.errors import Error, Refused, group_error, refusal
from nexo.dialects.kafka.request import (
    Request,
    answer_each,
    caller_of,
    errors_to,
    group_of,
    in_steps,
)
from nexo.errors import NexoError
from nexo.model.names import text_of
from nexo.services.connection import user_of
from nexo.services.stream.groups.kafka_classic import Classic, ClassicView

_ASKS_FOR_ID = 4
"""From this version on a new member of a group joins twice."""
_SKIPS_ASSIGNMENT = 9
_ID_CHARS = 64


def _classic(request: Request) -> Classic:
    return request.session.streams.classic


# -- membership --------------------------------------------------------------------------


def join_group(request: Request) -> None:
    """Answer once all members have joined."""

    def done(reply: MemberReply | NexoError) -> None:
        match reply:
            case Joined():
                request.answer(_joined(request, reply))
            case JoinRefused():
                member = reply.member_id or request["member"]
                request.answer({"error": group_error(reply.error), "member": member})
            case NexoError():
                request.answer({"error": refusal(reply), "member": request["member"]})

    with errors_to(done):
        group = group_of(request["group"])
        new_id = f"{request.client_id[:_ID_CHARS]}-{uuid4()}"
        _classic(request).join(request.session, group, _join(request), new_id, done)


def _join(request: Request) -> Join:
    session_ms, rows = request["session_ms"], request["protocols"] or ()
    protocols = tuple((row["name"] or "", bytes(row["metadata"] or b"")) for row in rows)
    _check_size(sum(len(metadata) for _, metadata in protocols))
    return Join(
        request["protocol_type"] or "",
        protocols,
        request["member"] or "",
        request["instance"],
        session_ms,
        request["rebalance_ms"] if request.version >= 1 else session_ms,
        request.client_id,
        f"/{request.session.address}",
        request.version >= _ASKS_FOR_ID,
        request.version >= _SKIPS_ASSIGNMENT,
        user_of(request.session),
    )


def _check_size(size: int) -> None:
    """What a member gives is kept in memory, and passed on to the others."""
    if size > MAX_MEMBER_BYTES:
        raise Refused(
            Error.INVALID_REQUEST,
            f"a member gives its group {size:,} bytes: at most {MAX_MEMBER_BYTES:,} are allowed",
        )


def _joined(request: Request, reply: Joined) -> KafkaMessage:
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

    def done(reply: MemberReply | NexoError) -> None:
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
    with errors_to(done):
        _check_size(max(map(len, assignments.values()), default=0))
        group, caller = group_of(request["group"]), caller_of(request)
        sync = _classic(request).sync
        sync(request.session, group, caller, assignments, done, request["protocol"])


def heartbeat(request: Request) -> None:
    """Report whether to continue or to join again."""
    try:
        group, caller = group_of(request["group"]), caller_of(request)
        error = group_error(_classic(request).heartbeat(request.session, group, caller))
    except NexoError as caught:
        error = refusal(caught)
    request.answer({"error": error})


def leave_group(request: Request) -> None:
    rows = [{"member": request["member"], "instance": None}]
    if request.version >= 3:
        rows = request["members"] or []
    leaving = [(row["member"] or "", row["instance"]) for row in rows]
    try:
        results = _classic(request).leave(request.session, group_of(request["group"]), leaving)
    except NexoError as found:
        request.answer({"error": refusal(found)})
        return
    errors = [group_error(result) for result in results]
    if request.version < 3:
        request.answer({"error": errors[0]})
    else:
        members = [row | {"error": error} for row, error in zip(rows, errors, strict=True)]
        request.answer({"members": members})


# -- administration ----------------------------------------------------------------------


def describe_groups(request: Request) -> Iterator[int]:
    found = yield from in_steps(request["groups"] or (), partial(_described, request))
    request.answer({"groups": found})


def _described(request: Request, group: str | None) -> KafkaMessage:
    try:
        view = _classic(request).view(request.session, group_of(group))
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
    operations = {"operations": on_group()} if request["operations"] else {}
    return {"group": group, "members": members} | _shown(view) | operations


def _shown(view: ClassicView) -> KafkaMessage:
    return {
        "state": view.state,
        "protocol_type": view.protocol_type,
        "protocol": view.protocol,
        "type": "Classic" if view.is_classic else "Consumer",
    }


def list_groups(request: Request) -> None:
    """All groups that the client may read."""
    states, types = _words(request["states"]), _words(request["types"])
    rows = (
        _shown(view) | {"group": text_of(view.name)}
        for view in _classic(request).views(request.session)
    )
    shown = (row for row in rows if not states or row["state"].lower() in states)
    request.answer({"groups": [row for row in shown if not types or row["type"].lower() in types]})


def _words(given: list[str | None] | None) -> set[str]:
    return {(word or "").lower() for word in given or ()}


def delete_groups(request: Request) -> Iterator[int]:
    """Delete groups without members."""
    return answer_each(request, "groups", "results", _delete_one)


def _delete_one(request: Request, group: str | None, done: Callable[[KafkaMessage], None]) -> None:
    def deleted(error: NexoError | None) -> None:
        done({"group": group, "error": Error.NONE if error is None else refusal(error)})

    with errors_to(deleted):
        view = _classic(request).view(request.session, group_of(group))
        if view.state == "Dead":
            raise Refused(Error.GROUP_ID_NOT_FOUND)
        if view.state != "Empty":
            raise Refused(Error.NON_EMPTY_GROUP)
        request.session.streams.ordered.delete(request.session, view.name, deleted)
