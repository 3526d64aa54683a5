"""What Kafka's controllers answer: the quorum, features, access control lists."""

from __future__ import annotations

from collections.abc import Iterator

from nexo.dialects.kafka.admin import BROKER, TOPIC
from nexo.dialects.kafka.cluster import all_topics
from nexo.dialects.kafka.describing.partitions import may_see_cluster
from nexo.dialects.kafka.format.codec import KafkaMessage
from nexo.dialects.kafka.format.errors import Error
from nexo.dialects.kafka.request import NODE_ID, ROW_WORK, Request, by_topic, rows_of
from nexo.model.names import text_of

_METADATA = "__cluster_metadata"


def describe_quorum(request: Request) -> Iterator[int]:
    """The one broker leads itself."""
    if not may_see_cluster(request):
        request.answer({"error": Error.CLUSTER_AUTHORIZATION_FAILED})
        return
    voter: KafkaMessage = {"id": NODE_ID, "end": 0}
    rows: list[tuple[str, KafkaMessage]] = []
    for topic, part in rows_of(request):
        row: KafkaMessage = {"partition": part["partition"]}
        if (topic, part["partition"]) == (_METADATA, 0):
            row |= {"leader": NODE_ID, "voters": [voter]}
        else:
            row["error"] = Error.UNKNOWN_TOPIC_OR_PARTITION
        rows.append((topic, row))
        yield ROW_WORK
    host, port = request.session.advertised_address
    listener = {"name": "CONTROLLER", "host": host, "port": port}
    nodes = [{"id": NODE_ID, "listeners": [listener]}]
    request.answer({"topics": by_topic(rows), "nodes": nodes})


def update_features(request: Request) -> None:
    """Refused: what this server can do is not switched on by clients."""
    seen = may_see_cluster(request)
    error = Error.FEATURE_UPDATE_FAILED if seen else Error.CLUSTER_AUTHORIZATION_FAILED
    reason = "the server has no features that clients switch on"
    rows = [
        {"feature": row["feature"], "error": error, "message": reason}
        for row in request["updates"] or ()
    ]
    request.answer({"error": error, "message": reason, "results": rows})


def list_config_resources(request: Request) -> None:
    """What has configurations: topics that the client may see, and the broker."""
    if not may_see_cluster(request):
        request.answer({"error": Error.CLUSTER_AUTHORIZATION_FAILED})
        return
    found: list[KafkaMessage] = []
    wanted = (request["kinds"] or (TOPIC, BROKER)) if request.version >= 1 else ()
    if TOPIC in wanted:
        found += ({"name": text_of(each.name), "type": TOPIC} for each in all_topics(request))
    if BROKER in wanted:
        found.append({"name": str(NODE_ID), "type": BROKER})
    request.answer({"resources": found})


_NO_ACLS: KafkaMessage = {
    "error": Error.SECURITY_DISABLED,
    "message": "there are no access control lists here: see `nexo user`",
}
"""Permissions are grants of users; tools know this answer of brokers without an authorizer."""


def describe_acls(request: Request) -> None:
    request.answer(_NO_ACLS)


def create_acls(request: Request) -> None:
    request.answer({"results": [_NO_ACLS for _ in request["creations"] or ()]})


def delete_acls(request: Request) -> None:
    request.answer({"results": [_NO_ACLS for _ in request["filters"] or ()]})
