"""Nexo's messages in Kafka's terms: addresses, values, headers, errors; shared by both clients."""

from __future__ import annotations

import ssl
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any
from urllib.parse import parse_qsl, unquote

import msgspec

from nexo.client.stream_records import content_of, headers_bytes, key_bytes
from nexo.errors import (
    AlreadyExists,
    ConnectionLost,
    Fenced,
    InvalidInput,
    InvalidOption,
    NexoError,
    NotFound,
    RequestTimeout,
)
from nexo.protocol.values import ValueType
from nexo.topics.model import ProducerRecord

TYPE_HEADER = "nexo-type"
"""Says how a value was encoded, so that text and bytes come back as such."""

_PREFIX = "kafka://"
_OPTIONS = {"security_protocol", "sasl_mechanism", "client_id", "request_timeout_ms"}


def library(module: str = "aiokafka") -> Any:
    """aiokafka; if it is missing, the error says how to install it."""
    try:
        return import_module(module)
    except ImportError:
        raise InvalidOption("kafka:// needs the extra: pip install 'nexo-broker[kafka]'") from None


def connection_options(url: str) -> dict[str, Any]:
    """The arguments of aiokafka's clients.

    ``kafka://user:password@host:9092,host:9092?security_protocol=SASL_SSL``.
    """
    hosts, _, query = url.removeprefix(_PREFIX).partition("?")
    login, _, servers = hosts.rpartition("@")
    servers = servers.rstrip("/")
    if not url.startswith(_PREFIX) or not servers:
        raise InvalidInput(f"{url!r} is not a Kafka URL: write kafka://host:9092")
    options: dict[str, Any] = {"bootstrap_servers": servers.split(",")}
    for name, text in parse_qsl(query):
        if name not in _OPTIONS:
            raise InvalidOption(f"unknown URL option {name!r}; known are {sorted(_OPTIONS)}")
        options[name] = int(text) if name.endswith("_ms") else text
    if login:
        user, _, password = login.partition(":")
        options["sasl_plain_username"] = unquote(user)
        options["sasl_plain_password"] = unquote(password)
    if options.get("security_protocol", "").endswith("SSL"):
        options["ssl_context"] = ssl.create_default_context()
    return options


def encoded(record: ProducerRecord) -> dict[str, Any]:
    """A message as aiokafka's ``send`` takes it."""
    headers = [(name, _text(value)) for name, value in (record.headers or {}).items()]
    value: bytes | None = None
    if record.value is not None:
        kind, value = content_of(record.value)
        headers.append((TYPE_HEADER, str(int(kind)).encode()))
    return {
        "value": value,
        "key": key_bytes(record.key),
        "partition": record.partition,
        "headers": headers,
    }


def _text(value: Any) -> bytes:
    return value.encode() if isinstance(value, str) else msgspec.json.encode(value)


def row_of(record: Any) -> Sequence[Any]:
    """The fields of a Kafka record, in the order in which `TopicMessage` takes them."""
    headers = dict(record.headers)
    kind = headers.pop(TYPE_HEADER, None)
    texts = {name: raw.decode(errors="replace") for name, raw in headers.items()}
    return (
        record.offset,
        record.timestamp,
        record.key,
        record.value,
        _kind(record.value) if kind is None else int(kind),
        headers_bytes(texts),
    )


def _kind(value: bytes | None) -> int:
    """The type of a value that another program wrote: JSON if it is valid JSON, else bytes."""
    try:
        msgspec.json.decode(value or b"")
    except (msgspec.DecodeError, UnicodeDecodeError):
        return ValueType.RAW
    return ValueType.JSON


_ERRORS: tuple[tuple[str, type[NexoError]], ...] = (
    ("KafkaConnectionError", ConnectionLost),
    ("NodeNotReadyError", ConnectionLost),
    ("KafkaTimeoutError", RequestTimeout),
    ("UnknownTopicOrPartitionError", NotFound),
    ("TopicAlreadyExistsError", AlreadyExists),
    ("ProducerFenced", Fenced),
    ("CommitFailedError", Fenced),
    ("IllegalStateError", InvalidInput),
    ("InvalidTopicError", InvalidInput),
)


@contextmanager
def translated() -> Iterator[None]:
    """Raise aiokafka's errors as ours."""
    errors = library("aiokafka.errors")
    try:
        yield
    except errors.KafkaError as error:
        for name, ours in _ERRORS:
            if isinstance(error, getattr(errors, name)):
                raise ours(str(error)) from error
        raise NexoError(str(error)) from error
