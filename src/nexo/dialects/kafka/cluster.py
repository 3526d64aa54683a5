"""What there is: APIs, the one broker, topics and their partitions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from uuid import UUID

from msgspec.structs import asdict

from nexo.dialects.kafka.admin import options_of_new
from nexo.dialects.kafka.describing.operations import on_cluster, on_topic
from nexo.dialects.kafka.format.apis import APIS, ApiKey
from nexo.dialects.kafka.format.codec import KafkaMessage
from nexo.dialects.kafka.format.errors import Error, error_of, refusal
from nexo.dialects.kafka.request import (
    NO_TOPIC_ID,
    NODE_ID,
    ROW_WORK,
    Gather,
    Request,
    errors_to,
    found_by_id,
    group_of,
    in_steps,
    stream_of,
    topic_id,
)
from nexo.dialects.kafka.second_look import waits_for_its_id, without_leader
from nexo.dialects.kafka.topic_names import INTERNAL, check_legal, check_new_topic
from nexo.dialects.kafka.transactional_ids import producer_name
from nexo.errors import Forbidden, NexoError, NotFound
from nexo.model.names import text_of
from nexo.model.stream import StreamInfo
from nexo.services.stream.admin import Outline

_PAGE = 10_000
_TRANSACTION = 1
_NOWHERE: KafkaMessage = {"node_id": -1, "port": -1}
_NO_COORDINATOR = {
    0: Error.GROUP_AUTHORIZATION_FAILED,
    _TRANSACTION: Error.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}
_VERSIONS = [{"key": api.key, "low": api.low, "high": api.high} for api in APIS.values()]
_FEATURES = (("group.version", 1), ("transaction.version", 2))
"""How clients may work with groups (KIP-848) and transactions (KIP-890), and should."""
_SERVED: KafkaMessage = {
    "keys": _VERSIONS,
    "supported": [{"name": name, "low": 0, "high": level} for name, level in _FEATURES],
    "epoch": 0,
    "finalized": [{"name": name, "low": level, "high": level} for name, level in _FEATURES],
}


def api_versions(request: Request) -> None:
    name, version = request.body.get("name"), request.body.get("version")
    request.session.waits_for_its_id = waits_for_its_id(name or "", version or "")
    request.answer(_SERVED)


def refuse_version(request: Request) -> None:
    """Answer a version, or an API, that is not served, as far as its answer is known.

    A client that is newer asks for the versions with its newest one and reads the oldest answer.
    For others the answer has the form of the nearest version that is served.
    """
    error = Error.UNSUPPORTED_VERSION
    if request.api.key is ApiKey.API_VERSIONS:
        request.answer({"error": error, "keys": _VERSIONS}, form=0)
    else:
        nearest = min(max(request.version, request.api.low), request.api.high)
        request.answer(request.api.response.refusal(error), form=nearest)


def find_coordinator(request: Request) -> Iterator[int]:
    """Every group and transaction is coordinated here."""
    asked = request["keys"] if request.version >= 4 else [request["key"]]
    rows = yield from in_steps(asked or (), partial(_coordinator, request))
    request.answer((rows[0] if rows else {}) | {"coordinators": rows})


def _coordinator(request: Request, key: str | None) -> KafkaMessage:
    """Where the coordinator is, whether there is such a group or not."""
    session, streams = request.session, request.session.streams
    try:
        if request["key_type"] == _TRANSACTION:
            streams.publishing.may_produce_as(session, producer_name(key or ""))
        else:
            streams.ordered.permit_name(session, group_of(key))
    except Forbidden as error:
        return _NOWHERE | {
            "key": key,
            "error": _NO_COORDINATOR.get(request["key_type"], Error.INVALID_REQUEST),
            "message": error.message,
        }
    except NexoError as error:
        return _NOWHERE | {"key": key, "error": refusal(error), "message": error.message}
    return _here(request) | {"key": key}


def describe_cluster(request: Request) -> None:
    request.answer(_cluster(request, asks=request["operations"]))


def _cluster(request: Request, *, asks: bool) -> KafkaMessage:
    cluster_id = request.session.streams.core.engine.cluster_id
    found = {"cluster_id": cluster_id, "controller": NODE_ID, "brokers": [_here(request)]}
    return found | ({"operations": on_cluster(request)} if asks else {})


def _here(request: Request) -> KafkaMessage:
    host, port = request.session.advertised_address
    return {"node_id": NODE_ID, "host": host, "port": port}


# -- topics --------------------------------------------------------------------------


def metadata(request: Request) -> Iterator[int]:
    """Topics and partitions; those asked for by name are created if the settings say so."""
    asked = request["topics"]
    cluster = _cluster(request, asks=request["cluster_operations"])
    again = _looks_again(request)

    def answer(topics: list[KafkaMessage]) -> None:
        found = [without_leader(row) for row in topics] if again else topics
        request.answer(cluster | {"topics": found})

    gather: Gather[KafkaMessage] = Gather(answer)
    if asked is None or (request.version == 0 and not asked):
        asks = request["topic_operations"]
        for outline in all_topics(request):
            gather.expect()(described_topic(request, outline, asks=asks))
            yield _work_of(outline)
    else:
        for row in _without_repeats(asked):
            if row["name"] is None and row["id"] != NO_TOPIC_ID:
                gather.expect()(_by_id(request, row["id"]))
            else:
                _look_up(request, row["name"] or "", gather)
            yield ROW_WORK
    gather.complete()


def _without_repeats(asked: list[KafkaMessage]) -> Iterable[KafkaMessage]:
    return {(row["name"], row["id"]): row for row in asked}.values()


def _work_of(outline: Outline) -> int:
    return ROW_WORK + outline.options.partitions * 1_024


def _looks_again(request: Request) -> bool:
    """Whether the client is a producer that shall ask a second time when it starts."""
    session = request.session
    first, session.looked = not session.looked, True
    if not (first and session.waits_for_its_id and request["auto_create"]):
        return False
    now_ms = session.state.host.clock.now_ms()
    is_due = session.state.second_looks.is_due(session.address, request.client_id, now_ms)
    return is_due and bool(request["topics"])


def all_topics(request: Request) -> Iterable[Outline]:
    """All that the client may see."""
    admin, after = request.session.streams.admin, ""
    try:
        while names := admin.names(request.session, after=after, limit=_PAGE):
            yield from (admin.outline(request.session, name) for name in names)
            after = names[-1]
    except Forbidden:
        return  # nothing is there for this user


def _look_up(request: Request, topic: str, gather: Gather[KafkaMessage]) -> None:
    done, asks = gather.expect(), request["topic_operations"]
    session = request.session
    admin, settings = session.streams.admin, session.state.host.settings

    def created(found: StreamInfo | NexoError) -> None:
        if isinstance(found, NexoError):
            done({"error": error_of(found), "name": topic})
        else:
            done(described_topic(request, admin.outline(session, found.name), asks=asks))

    with errors_to(created):
        name = stream_of(topic)
        try:
            done(described_topic(request, admin.outline(session, name), asks=asks))
        except NotFound:
            check_legal(topic)
            if not (settings.kafka_auto_create and request["auto_create"]) or topic in INTERNAL:
                raise
            check_new_topic(request, topic)
            options = options_of_new(request, settings.kafka_partitions)
            admin.create(session, name, asdict(options), created)


def _by_id(request: Request, found: UUID) -> KafkaMessage:
    try:
        asks = request["topic_operations"]
        return described_topic(request, found_by_id(request, found), asks=asks)
    except NexoError as error:
        return {"error": error_of(error), "name": None, "id": found}


def described_topic(request: Request, outline: Outline, *, asks: bool) -> KafkaMessage:
    """A topic and its partitions, with what the client may do if it ``asks``."""
    here = [NODE_ID]
    partitions = [
        {"partition": index, "leader": NODE_ID, "replicas": here, "isr": here}
        for index in range(outline.options.partitions)
    ]
    found = {
        "name": text_of(outline.name),
        "id": topic_id(outline),
        "internal": outline.is_system,
        "partitions": partitions,
    }
    return found | ({"operations": on_topic(request, outline.name)} if asks else {})
