"""OpenTelemetry spans, for applications that use OpenTelemetry.

The trace travels in the headers of a record (``traceparent``), so that handling it is linked to
publishing it. Nothing of this runs unless the application has set a tracer provider before it
asks for a stream.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

# ruff: noqa: PLC0415 - an optional library, which the application has imported by then

_SYSTEM = "nexo"


def in_use() -> bool:
    """Whether this application traces anything; that a library imported the API is not enough."""
    trace = sys.modules.get("opentelemetry.trace")
    if trace is None:
        return False
    return not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider)


@contextmanager
def publishing(stream: str) -> Iterator[dict[str, Any]]:
    """A span around sending; yields the headers that carry it, none if nobody records."""
    from opentelemetry import propagate, trace

    attributes = _attributes(stream, "send")
    with trace.get_tracer(_SYSTEM).start_as_current_span(
        f"publish {stream}", kind=trace.SpanKind.PRODUCER, attributes=attributes
    ):
        carried: dict[str, Any] = {}
        propagate.inject(carried)
        yield carried


@contextmanager
def processing(stream: str, group: str, headers: Mapping[str, Any]) -> Iterator[None]:
    """A span around handling a record, linked to the one that published it."""
    from opentelemetry import propagate, trace

    texts = {name: value for name, value in headers.items() if isinstance(value, str)}
    origin = trace.get_current_span(propagate.extract(texts)).get_span_context()
    attributes = _attributes(stream, "process") | {"messaging.consumer.group.name": group}
    with trace.get_tracer(_SYSTEM).start_as_current_span(
        f"process {stream}",
        kind=trace.SpanKind.CONSUMER,
        links=[trace.Link(origin)] if origin.is_valid else [],
        attributes=attributes,
    ):
        yield


def _attributes(stream: str, operation: str) -> dict[str, str]:
    return {
        "messaging.system": _SYSTEM,
        "messaging.destination.name": stream,
        "messaging.operation.type": operation,
    }
