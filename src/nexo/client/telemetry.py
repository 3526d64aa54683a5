"""OpenTelemetry spans, for applications that use OpenTelemetry.

The trace travels in the headers of a record, job or message (``traceparent``), so that
handling it continues and links to the trace that sent it. Nothing of this runs unless the
application has set a tracer provider before it makes a client (for pub/sub) or asks it for a
queue or stream.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

# ruff: noqa: PLC0415 - an optional library, which the application has imported by then

_SYSTEM = "nexo"


class TelemetrySettings:
    """The hooks that `nexo.integrations.opentelemetry` sets."""

    provider: Any = None
    """A tracer provider to use instead of the process's own."""
    disabled = False


settings = TelemetrySettings()


def in_use() -> bool:
    """Whether this application traces anything; importing the API alone does not count."""
    if settings.disabled:
        return False
    if settings.provider is not None:
        return True
    trace = sys.modules.get("opentelemetry.trace")
    if trace is None:
        return False
    return not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider)


def carried() -> dict[str, Any]:
    """Headers that carry the current span, for messages sent later; none without tracing."""
    if not in_use():
        return {}
    from opentelemetry import propagate

    headers: dict[str, Any] = {}
    propagate.inject(headers)
    return headers


@contextmanager
def publishing(name: str, verb: str = "publish") -> Iterator[dict[str, Any]]:
    """A span around sending; yields the headers that carry it, none if it is not recorded."""
    from opentelemetry import propagate, trace

    with _tracer().start_as_current_span(
        f"{verb} {name}", kind=trace.SpanKind.PRODUCER, attributes=_attributes(name, "send")
    ):
        headers: dict[str, Any] = {}
        propagate.inject(headers)
        yield headers


@contextmanager
def processing(
    name: str, headers: Mapping[str, Any], attributes: Mapping[str, str | int] | None = None
) -> Iterator[None]:
    """A span around handling what carries ``headers``, linked to the span that sent it.

    Its parent is the current span if there is one, otherwise the span that sent it.
    """
    from opentelemetry import propagate, trace

    texts = {name: value for name, value in headers.items() if isinstance(value, str)}
    context = propagate.extract(texts)
    origin = trace.get_current_span(context).get_span_context()
    current = trace.get_current_span().get_span_context()
    with _tracer().start_as_current_span(
        f"process {name}",
        context=None if current.is_valid else context,
        kind=trace.SpanKind.CONSUMER,
        links=[trace.Link(origin)] if origin.is_valid else [],
        attributes=_attributes(name, "process") | dict(attributes or {}),
    ):
        yield


def joined(carried: Mapping[str, Any], headers: Any) -> Any:
    """``headers`` with those that carry a span; anything but a mapping is returned as it is."""
    if headers is not None and not isinstance(headers, Mapping):
        return headers
    return {**carried, **(headers or {})} or None


def joined_each(carried: Mapping[str, Any], headers: Any, count: int) -> Any:
    """`joined` of the headers of each of ``count`` values, which may have none."""
    if not carried:
        return headers
    return [joined(carried, each) for each in ([None] * count if headers is None else headers)]


def _tracer() -> Any:
    from opentelemetry import trace

    return trace.get_tracer(_SYSTEM, tracer_provider=settings.provider)


def _attributes(name: str, operation: str) -> dict[str, str | int]:
    return {
        "messaging.system": _SYSTEM,
        "messaging.destination.name": name,
        "messaging.operation.type": operation,
    }
