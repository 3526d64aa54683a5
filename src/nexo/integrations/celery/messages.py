"""kombu's messages as jobs and pub/sub messages, and back.

The body is the value, as text or bytes. The headers are the job's headers, so that whoever looks
at a Celery job sees its ``task``, ``id`` and ``argsrepr``; what else kombu knows of a message is
the header ``x-kombu``.
"""

from __future__ import annotations

import time
from datetime import datetime
from typing import Any, NamedTuple

import msgspec
from kombu.utils import json as kombu_json
from kombu.utils.uuid import uuid

from nexo.integrations.jobs import text_if_utf8
from nexo.options.queue import MAX_DELAY_MS, MAX_PRIORITY

REST = "x-kombu"
"""The header that holds properties, content type and encoding."""

TRANSIENT = 1
"""The delivery mode of what nobody keeps: replies, events."""


class OutgoingMessage(NamedTuple):
    """A message on its way to queues or subscribers."""

    body: str | bytes
    headers: dict[str, Any]
    priority: int
    delay_ms: int
    ttl_ms: int
    tag: str
    """The same when kombu publishes a message again, so that it is stored once."""
    transient: bool


def outgoing(message: dict[str, Any], exchange: str, routing_key: str) -> OutgoingMessage:
    properties = message["properties"]
    tag = properties.setdefault("delivery_tag", uuid())
    properties["delivery_info"] |= {"exchange": exchange, "routing_key": routing_key}
    headers = message["headers"] or {}
    return OutgoingMessage(
        _body(message["body"], message["content-encoding"]),
        _json(headers) | {REST: _json(_rest(message))},
        min(whole(properties.get("priority")), MAX_PRIORITY),
        delay_ms(headers),
        whole(properties.get("expiration")),
        tag,
        properties.get("delivery_mode") == TRANSIENT,
    )


def incoming(
    body: str | bytes, headers: dict[str, Any], tag: int, *, redelivered: bool = False
) -> dict[str, Any]:
    """A job or pub/sub message as kombu's, in its virtual transports' form."""
    rest = _revived(headers.pop(REST, None) or {})
    properties = rest.get("properties") or {}
    info = (properties.get("delivery_info") or {}) | {"redelivered": redelivered}
    return {
        "body": body,
        "headers": _revived(headers),
        "content-type": rest.get("type"),
        "content-encoding": rest.get("encoding"),
        "properties": properties | {"delivery_tag": tag, "delivery_info": info},
    }


def delay_ms(headers: dict[str, Any]) -> int:
    """How long the broker holds a task with a countdown or ETA; 0 if its worker has to."""
    eta = headers.get("eta")
    if not isinstance(eta, str):
        return 0
    try:
        due = datetime.fromisoformat(eta)
    except ValueError:
        return 0
    if due.tzinfo is None:
        return 0  # whose local time it is, only the worker knows
    return min(max(0, round((due.timestamp() - time.time()) * 1_000)), MAX_DELAY_MS)


def _rest(message: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": message["content-type"],
        "encoding": message["content-encoding"],
        "properties": message["properties"],
    }


def _body(body: Any, encoding: str | None) -> str | bytes:
    if isinstance(body, str):
        return body
    content = bytes(body)
    return text_if_utf8(content) if (encoding or "").lower() == "utf-8" else content


def whole(number: Any) -> int:
    """A number of kombu's properties; 0 for none, or nonsense."""
    try:
        return max(0, int(number))
    except (TypeError, ValueError):
        return 0


def _json(values: dict[str, Any]) -> dict[str, Any]:
    """Encode values that JSON cannot hold, such as times, as kombu does."""
    return msgspec.json.decode(kombu_json.dumps(values), type=dict[str, Any])


def _revived(value: Any) -> Any:
    match value:
        case dict():
            return kombu_json.object_hook({key: _revived(each) for key, each in value.items()})
        case list():
            return [_revived(each) for each in value]
    return value
