"""Administration: topics and their configurations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterator
from functools import partial
from typing import Any

from msgspec import convert
from msgspec.structs import asdict, replace

from nexo.config import Settings
from nexo.dialects.kafka.configs import TopicConfigs, broker_configs, usual_options
from nexo.dialects.kafka.format.codec import KafkaMessage
from nexo.dialects.kafka.format.errors import Error, Refused, error_of, failure
from nexo.dialects.kafka.request import (
    NO_TOPIC_ID,
    NODE_ID,
    Request,
    answer_each,
    by_topic,
    errors_to,
    found_by_id,
    in_steps,
    rows_of,
    stream_of,
    topic_id,
)
from nexo.dialects.kafka.topic_names import check_new_topic
from nexo.errors import Conflict, InvalidInput, InvalidOption, NexoError
from nexo.model.names import text_of
from nexo.model.stream import StreamInfo
from nexo.options.stream import StreamOptions
from nexo.services.stream.admin import StreamAdmin

_DELETED_BY_ID = 6
TOPIC, BROKER = 2, 4
"""Kinds of resources that have configurations."""
_CONFIGS_WORK = 128 * 1024
"""All configurations of a topic are about as much work, in bytes."""
_NO_TOPIC = Error.TOPIC_AUTHORIZATION_FAILED


def _admin(request: Request) -> StreamAdmin:
    return request.session.streams.admin


def _settings(request: Request) -> Settings:
    return request.session.state.host.settings


def options_of_new(request: Request, partitions: int) -> StreamOptions:
    """The options of a topic that a client creates without any configurations."""
    return replace(usual_options(_settings(request)), partitions=partitions)


# -- topics ------------------------------------------------------------------------------


def create_topics(request: Request) -> Iterator[int]:
    """Create streams, or only check whether they could be."""
    return answer_each(request, "topics", "topics", _create_one)


def _create_one(request: Request, row: KafkaMessage, done: Callable[[KafkaMessage], None]) -> None:
    topic = row["name"] or ""

    def created(found: Any) -> None:
        if isinstance(found, NexoError):
            done({"name": topic} | failure(found))
        else:
            settings = TopicConfigs(found, _settings(request)).described(None)
            answer = {"partitions": found.partitions, "replication": 1, "configs": settings}
            done({"name": topic} | answer | known)

    known: KafkaMessage = {}

    def stored(found: StreamInfo | NexoError) -> None:
        if isinstance(found, NexoError):
            created(found)
        else:
            known["id"] = topic_id(_admin(request).outline(request.session, found.name))
            created(convert(found.options, StreamOptions))

    with errors_to(created):
        check_new_topic(request, topic)
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
        count = len(assigned) or _settings(request).kafka_partitions
    if count < 1 or any(broker != NODE_ID for one in assigned for broker in one["brokers"] or ()):
        reason = f"{count} partitions on these brokers: there is only broker {NODE_ID}"
        raise Refused(Error.INVALID_PARTITIONS, reason)
    usual = options_of_new(request, count)
    given = TopicConfigs(usual, _settings(request)).options(_named(row))
    return asdict(usual) | given


def _named(row: KafkaMessage) -> list[tuple[str, str | None]]:
    return [(each["name"] or "", each["value"]) for each in row["configs"] or ()]


def delete_topics(request: Request) -> Iterator[int]:
    """Delete topics by name; from version 6 on by id too."""
    if request.version < _DELETED_BY_ID:
        return answer_each(request, "topics", "topics", _delete_named)
    return answer_each(request, "named", "topics", _delete_one)


def _delete_named(
    request: Request, topic: str | None, done: Callable[[KafkaMessage], None]
) -> None:
    _delete_one(request, {"name": topic or "", "id": NO_TOPIC_ID}, done)


def _delete_one(request: Request, row: KafkaMessage, done: Callable[[KafkaMessage], None]) -> None:
    answer: KafkaMessage = {"name": row["name"], "id": row["id"]}

    def deleted(error: NexoError | None) -> None:
        done(answer if error is None else answer | failure(error))

    with errors_to(deleted):
        if row["id"] == NO_TOPIC_ID:
            name = stream_of(row["name"])
        elif row["name"] is None:
            name = found_by_id(request, row["id"]).name
            answer["name"] = text_of(name)
        else:
            raise Refused(Error.INVALID_REQUEST, "name a topic, or give its id, not both")
        _admin(request).delete(request.session, name, deleted)


def create_partitions(request: Request) -> Iterator[int]:
    """Add partitions to topics, or only check whether that could be done."""
    names = Counter(row["name"] for row in request["topics"] or ())
    twice = frozenset(name for name, times in names.items() if times > 1)
    return answer_each(request, "topics", "results", partial(_grow_one, twice))


def _grow_one(
    twice: Container[str | None],
    request: Request,
    row: KafkaMessage,
    done: Callable[[KafkaMessage], None],
) -> None:
    topic, count = row["name"] or "", row["count"]
    admin, session = _admin(request), request.session

    def grown(found: Any) -> None:
        done({"name": topic} | (failure(found) if isinstance(found, NexoError) else {}))

    with errors_to(grown):
        if row["name"] in twice:
            raise Refused(Error.INVALID_REQUEST, "Duplicate topic in request.")
        name = stream_of(topic)
        try:
            admin.check_more_partitions(session, name, count)
        except (InvalidOption, Conflict) as error:
            raise Refused(Error.INVALID_PARTITIONS, error.message) from None
        more = count - admin.outline(session, name).options.partitions
        _check_assignments(row["assignments"], more)
        if request["validate_only"]:
            grown(None)
        else:
            admin.update(session, name, {"partitions": count}, grown)


def _check_assignments(assigned: list[KafkaMessage] | None, more: int) -> None:
    if assigned is None:
        return
    if len(assigned) != more:
        reason = f"{more} partitions are added, but {len(assigned)} are assigned to brokers"
        raise Refused(Error.INVALID_REPLICA_ASSIGNMENT, reason)
    if any(one["brokers"] != [NODE_ID] for one in assigned):
        reason = f"there is only broker {NODE_ID}, which keeps one copy"
        raise Refused(Error.INVALID_REPLICA_ASSIGNMENT, reason)


def delete_records(request: Request) -> Iterator[int]:
    """Delete what lies below an offset."""
    drop_before = _admin(request).drop_before

    def delete(asked: tuple[str, KafkaMessage]) -> tuple[str, KafkaMessage]:
        topic, part = asked
        index, offset = part["partition"], part["offset"]
        row: KafkaMessage = {"partition": index}
        try:
            row["low"] = drop_before(request.session, stream_of(topic), index, offset)
        except NexoError as error:
            row["error"] = error_of(error)
        return topic, row

    rows = yield from in_steps(rows_of(request), delete)
    request.answer({"topics": by_topic(rows)})


# -- configurations ----------------------------------------------------------------------


def describe_configs(request: Request) -> Iterator[int]:
    """Configurations of topics and of the broker, with defaults."""
    seen: set[tuple[int, str | None]] = set()

    def describe(row: KafkaMessage) -> KafkaMessage:
        resource = row["type"], row["name"]
        if resource in seen:
            error = Refused(Error.INVALID_REQUEST, "it is asked for twice")
            return {"type": row["type"], "name": row["name"]} | failure(error)
        seen.add(resource)
        return _described(request, row)

    rows = yield from in_steps(request["resources"] or (), describe, _CONFIGS_WORK)
    request.answer({"results": rows})


def _described(request: Request, row: KafkaMessage) -> KafkaMessage:
    answer: KafkaMessage = {"type": row["type"], "name": row["name"]}
    try:
        if row["type"] == BROKER:
            _admin(request).check_knows_streams(request.session)
            configs = broker_configs(
                _settings(request), row["keys"], request.session.advertised_address
            )
            return answer | {"configs": configs}
        if row["type"] != TOPIC:
            raise InvalidInput("only topics and the broker have configurations")
        found = _admin(request).outline(request.session, stream_of(row["name"]))
        configs = TopicConfigs(found.options, _settings(request)).described(row["keys"])
    except NexoError as error:
        forbidden = Error.CLUSTER_AUTHORIZATION_FAILED if row["type"] == BROKER else _NO_TOPIC
        return answer | {"error": error_of(error, forbidden), "message": error.message}
    return answer | {"configs": configs}


def alter_configs(request: Request) -> Iterator[int]:
    """Set all configurations of topics: what is not named gets its default."""

    def options(row: KafkaMessage, now: TopicConfigs) -> dict[str, Any]:
        return now.replaced(_named(row))

    return answer_each(request, "resources", "responses", partial(_alter_one, options))


def incremental_alter_configs(request: Request) -> Iterator[int]:
    """Change some configurations of topics."""

    def options(row: KafkaMessage, now: TopicConfigs) -> dict[str, Any]:
        rows = ((each["name"] or "", each["op"], each["value"]) for each in row["configs"] or ())
        return now.changed(rows)

    return answer_each(request, "resources", "responses", partial(_alter_one, options))


def _alter_one(
    options: Callable[[KafkaMessage, TopicConfigs], dict[str, Any]],
    request: Request,
    row: KafkaMessage,
    done: Callable[[KafkaMessage], None],
) -> None:
    answer: KafkaMessage = {"type": row["type"], "name": row["name"]}

    def altered(found: Any) -> None:
        done(answer | failure(found) if isinstance(found, NexoError) else answer)

    with errors_to(altered):
        if row["type"] != TOPIC:
            raise InvalidOption("only configurations of topics can be changed")
        name = stream_of(row["name"])
        found = _admin(request).outline(request.session, name).options
        given = options(row, TopicConfigs(found, _settings(request)))
        if request["validate_only"]:
            altered(None)
        else:
            _admin(request).update(request.session, name, given, altered)
