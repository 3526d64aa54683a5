"""Consumer groups whose partitions the broker assigns (KIP-848)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any
from uuid import uuid4

from nexo.brokers.stream.groups.kafka.model import GroupError
from nexo.brokers.stream.groups.kafka.topic_pattern import TopicPattern
from nexo.dialects.kafka.describing.operations import on_group
from nexo.dialects.kafka.format.codec import KafkaMessage
from nexo.dialects.kafka.format.errors import Error, Refused, group_error, refusal
from nexo.dialects.kafka.request import (
    Request,
    errors_to,
    group_of,
    in_steps,
    outline_of,
    stream_of,
    topic_id,
)
from nexo.errors import Forbidden, InvalidInput, NexoError, NotFound
from nexo.model.names import text_of
from nexo.model.stream import StreamPartition
from nexo.options.stream import Strategy
from nexo.services.stream.groups.kafka_consumers import JOIN, Beat, BeatReply, MemberView

HEARTBEAT_MS = 5_000
"""How often members ask, as on Kafka."""
SETTLING_MS = 1_000
"""The same while partitions move, so that members soon learn of those that others gave up."""
_LOWEST_EPOCH = -2
_ASSIGNORS: dict[str, Strategy] = {"range": "range", "uniform": "roundRobin"}
_STRATEGIES = {strategy: name for name, strategy in _ASSIGNORS.items()}


def heartbeat(request: Request) -> None:
    """Join, stay or leave; the answer says what the member owns."""

    def done(reply: BeatReply | GroupError | NexoError) -> None:
        match reply:
            case BeatReply():
                request.answer(_owns(request, reply))
            case GroupError():
                request.answer({"error": group_error(reply)})
            case NexoError():
                request.answer({"error": refusal(reply), "message": reply.message})

    with errors_to(done):
        _check(request)
        beat = _beat(request)
        consumers = request.session.streams.consumers
        consumers.heartbeat(request.session, group_of(request["group"]), beat, done)


def _check(request: Request) -> None:
    """Refuse what is wrong in a heartbeat, whatever the group is."""
    epoch, assignor = request["epoch"], request["assignor"]
    names_none = request["topics"] is None and not request["regex"]
    if epoch < _LOWEST_EPOCH or (epoch == JOIN and names_none):
        raise Refused(Error.INVALID_REQUEST, "a member that joins must name its topics")
    if assignor is not None and assignor not in _ASSIGNORS:
        raise Refused(Error.UNSUPPORTED_ASSIGNOR, f"there are only {', '.join(_ASSIGNORS)}")


def _beat(request: Request) -> Beat:
    topics, member = request["topics"], request["member"]
    if not member and request["epoch"] == JOIN:
        member = str(uuid4())
    return Beat(
        member or "",
        request["epoch"],
        request["instance"],
        None if topics is None else [stream_of(topic) for topic in topics],
        _owned(request),
        request["rebalance_ms"],
        _ASSIGNORS.get(request["assignor"] or ""),
        request.client_id,
        f"/{request.session.address}",
        _pattern(request),
    )


def _pattern(request: Request) -> TopicPattern | None:
    text: str | None = request["regex"]
    try:
        return None if text is None else TopicPattern(text)
    except InvalidInput as error:
        raise Refused(Error.INVALID_REGULAR_EXPRESSION, error.message) from None


def _owned(request: Request) -> set[StreamPartition] | None:
    """What a member says it owns; topics that are gone are nobody's."""
    if request["owned"] is None:
        return None
    found: set[StreamPartition] = set()
    for topic in request["owned"]:
        try:
            name = outline_of(request, topic["id"]).name
        except (NotFound, Forbidden):
            continue
        found.update((name, index) for index in topic["partitions"] or ())
    return found


def _owns(request: Request, reply: BeatReply) -> KafkaMessage:
    assignment = None if reply.owned is None else {"topics": _by_id(request, reply.owned)}
    return {
        "member": reply.member,
        "epoch": reply.epoch,
        "heartbeat_ms": HEARTBEAT_MS if reply.is_settled else SETTLING_MS,
        "assignment": assignment,
    }


def _by_id(request: Request, owned: Iterable[StreamPartition]) -> list[KafkaMessage]:
    admin, found = request.session.streams.admin, dict[str, list[int]]()
    for name, index in owned:
        found.setdefault(name, []).append(index)
    rows: list[KafkaMessage] = []
    for name, indexes in found.items():
        outline = admin.outline(request.session, name)
        rows.append({"id": topic_id(outline), "name": text_of(name), "partitions": indexes})
    return rows


def describe(request: Request) -> Iterator[int]:
    groups = yield from in_steps(request["groups"] or (), partial(_described, request))
    request.answer({"groups": groups})


def _described(request: Request, group: str | None) -> KafkaMessage:
    streams, session = request.session.streams, request.session
    answer: KafkaMessage = {"group": group}
    try:
        name = group_of(group)
        view = streams.classic.view(session, name)
        if view.is_classic:
            raise NotFound(f"group {group!r} is no group whose partitions the broker assigns")
        found, members = streams.consumers.views(session, name)
        rows = [_member(request, member) for member in members]
    except NotFound as error:
        return answer | {"error": Error.GROUP_ID_NOT_FOUND, "message": error.message}
    except NexoError as error:
        return answer | {"error": refusal(error), "message": error.message}
    operations = {"operations": on_group()} if request["operations"] else {}
    return (
        answer
        | operations
        | {
            "state": view.state,
            "epoch": found.generation,
            "assignment_epoch": found.generation,
            "assignor": _STRATEGIES[found.options.strategy],
            "members": rows,
        }
    )


def _member(request: Request, view: MemberView) -> dict[str, Any]:
    known = view.consumer
    return {
        "member": known.id,
        "instance": known.instance,
        "epoch": view.epoch,
        "client_id": known.client_id,
        "client_host": known.client_host,
        "topics": [text_of(topic) for topic in known.topics],
        "regex": known.pattern.text if known.pattern is not None else None,
        "assignment": {"topics": _by_id(request, view.owned)},
        "target": {"topics": _by_id(request, view.target)},
    }
