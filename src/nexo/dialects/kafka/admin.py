"""Administration: topics and their configurations."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from msgspec import convert

from nexo.dialects.kafka.configs import (
    OPTIONS,
    broker_configs,
    changed_options,
    described,
    options_of,
)
from nexo.dialects.kafka.format.codec import KafkaMessage
from nexo.dialects.kafka.format.errors import Error, Refused, error_of, failure
from nexo.dialects.kafka.request import (
    NODE_ID,
    Request,
    answer_each,
    by_topic,
    errors_to,
    rows_of,
    stream_of,
)
from nexo.errors import InvalidInput, InvalidOption, NexoError
from nexo.model.stream import StreamInfo
from nexo.options.stream import StreamOptions
from nexo.services.stream.admin import StreamAdmin

_TOPIC, _BROKER = 2, 4
"""Kinds of resources that have configurations."""
_NO_TOPIC = Error.TOPIC_AUTHORIZATION_FAILED


def _admin(request: Request) -> StreamAdmin:
    return request.session.streams.admin


def _usual(request: Request) -> StreamOptions:
    return request.session.state.host.settings.stream_options


# -- topics ------------------------------------------------------------------------------


def create_topics(request: Request) -> None:
    """Create streams, or only check whether they could be."""
    answer_each(request, "topics", "topics", _create_one)


def _create_one(request: Request, row: KafkaMessage, done: Callable[[KafkaMessage], None]) -> None:
    topic = row["name"] or ""

    def created(found: Any) -> None:
        if isinstance(found, NexoError):
            done({"name": topic} | failure(found))
        else:
            settings = described(found, _usual(request), None)
            answer = {"partitions": found.partitions, "replication": 1, "configs": settings}
            done({"name": topic} | answer)

    def stored(found: StreamInfo | NexoError) -> None:
        if isinstance(found, NexoError):
            created(found)
        else:
            created(convert(found.options, StreamOptions))

    with errors_to(created):
        name = stream_of(topic)
        options = _options(request, row)
        if request["validate_only"]:
            created(_admin(request).check_create(request.session, name, options))
        else:
            _admin(request).create(request.session, name, options, stored, fresh=True)


def _options(request: Request, row: KafkaMessage) -> dict[str, Any]:
    """Replication is accepted and means one copy; assignments only count partitions."""
    count, assigned = row["partitions"], row["assignments"] or ()
    if count == -1:
        count = len(assigned) or request.session.state.host.settings.kafka_partitions
    if count < 1 or any(broker != NODE_ID for one in assigned for broker in one["brokers"] or ()):
        reason = f"{count} partitions on these brokers: there is only broker {NODE_ID}"
        raise Refused(Error.INVALID_PARTITIONS, reason)
    given = options_of((each["name"] or "", each["value"]) for each in row["configs"] or ())
    return given | {"partitions": count}


def delete_topics(request: Request) -> None:
    answer_each(request, "topics", "topics", _delete_one)


def _delete_one(request: Request, topic: str | None, done: Callable[[KafkaMessage], None]) -> None:
    def deleted(error: NexoError | None) -> None:
        row: KafkaMessage = {"name": topic or ""}
        done(row if error is None else row | failure(error))

    with errors_to(deleted):
        _admin(request).delete(request.session, stream_of(topic), deleted)


def create_partitions(request: Request) -> None:
    """Refused: the number of partitions is fixed, as keys would move between them."""
    request.answer({"results": [_no_more(request, row) for row in request["topics"] or ()]})


def _no_more(request: Request, row: KafkaMessage) -> KafkaMessage:
    topic = row["name"] or ""
    try:
        found = _admin(request).outline(request.session, stream_of(topic)).options.partitions
    except NexoError as error:
        return {"name": topic} | failure(error)
    reason = f"{topic!r} has {found} partitions, which are fixed: create another topic and copy"
    return {"name": topic, "error": Error.INVALID_PARTITIONS, "message": reason}


def delete_records(request: Request) -> None:
    """Delete what lies below an offset."""
    rows: list[tuple[str, KafkaMessage]] = []
    drop_before = _admin(request).drop_before
    for topic, part in rows_of(request):
        index, offset = part["partition"], part["offset"]
        row: KafkaMessage = {"partition": index}
        try:
            row["low"] = drop_before(request.session, stream_of(topic), index, offset)
        except NexoError as error:
            row["error"] = error_of(error)
        rows.append((topic, row))
    request.answer({"topics": by_topic(rows)})


# -- configurations ----------------------------------------------------------------------


def describe_configs(request: Request) -> None:
    """Configurations of topics and of the broker, with defaults."""
    request.answer({"results": [_described(request, row) for row in request["resources"] or ()]})


def _described(request: Request, row: KafkaMessage) -> KafkaMessage:
    answer: KafkaMessage = {"type": row["type"], "name": row["name"]}
    try:
        if row["type"] == _BROKER:
            _admin(request).check_knows_streams(request.session)
            settings = request.session.state.host.settings
            return answer | {"configs": broker_configs(settings, row["keys"])}
        if row["type"] != _TOPIC:
            raise InvalidInput("only topics and the broker have configurations")
        found = _admin(request).outline(request.session, stream_of(row["name"]))
        configs = described(found.options, _usual(request), row["keys"])
    except NexoError as error:
        forbidden = Error.CLUSTER_AUTHORIZATION_FAILED if row["type"] == _BROKER else _NO_TOPIC
        return answer | {"error": error_of(error, forbidden), "message": error.message}
    return answer | {"configs": configs}


def alter_configs(request: Request) -> None:
    """Set all configurations of topics: what is not named gets its default."""

    def options(row: KafkaMessage, now: StreamOptions) -> dict[str, Any]:
        usual = _usual(request)
        reset = {name: getattr(usual, name) for name in now.__struct_fields__ if name in _CHANGES}
        given = options_of((each["name"] or "", each["value"]) for each in row["configs"] or ())
        return reset | given

    answer_each(request, "resources", "responses", partial(_alter_one, options))


_CHANGES = set(OPTIONS.values()) - {"tiering"}


def incremental_alter_configs(request: Request) -> None:
    """Change some configurations of topics."""

    def options(row: KafkaMessage, now: StreamOptions) -> dict[str, Any]:
        rows = ((each["name"] or "", each["op"], each["value"]) for each in row["configs"] or ())
        return changed_options(now, _usual(request), rows)

    answer_each(request, "resources", "responses", partial(_alter_one, options))


def _alter_one(
    options: Callable[[KafkaMessage, StreamOptions], dict[str, Any]],
    request: Request,
    row: KafkaMessage,
    done: Callable[[KafkaMessage], None],
) -> None:
    answer: KafkaMessage = {"type": row["type"], "name": row["name"]}

    def altered(found: Any) -> None:
        done(answer | failure(found) if isinstance(found, NexoError) else answer)

    with errors_to(altered):
        if row["type"] != _TOPIC:
            raise InvalidOption("only configurations of topics can be changed")
        name = stream_of(row["name"])
        given = options(row, _admin(request).outline(request.session, name).options)
        if request["validate_only"]:
            altered(None)
        else:
            _admin(request).update(request.session, name, given, altered)
