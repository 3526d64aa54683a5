"""OpenTelemetry (SPEC M5): what ``opentelemetry-instrument`` finds, and spans for your own loops.

The spans themselves are made by the client (`nexo.client.telemetry`) as soon as the process has
a tracer provider. `NexoInstrumentor` gives them another provider, or switches them off.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

from opentelemetry.instrumentation.instrumentor import BaseInstrumentor  # type: ignore[attr-defined]

from nexo.client import telemetry


class NexoInstrumentor(BaseInstrumentor):
    """``NexoInstrumentor().instrument(tracer_provider=…)``; ``uninstrument()`` ends all spans.

    Both hold for the clients, queues and streams that are made afterwards.
    """

    def instrumentation_dependencies(self) -> Collection[str]:
        """None: this is part of what it instruments."""
        return ()

    def _instrument(self, **options: Any) -> None:
        telemetry.settings.provider = options.get("tracer_provider")
        telemetry.settings.disabled = False

    def _uninstrument(self, **_options: Any) -> None:
        telemetry.settings.provider = None
        telemetry.settings.disabled = True


class _Carrier(Protocol):
    """A job, record or message."""

    @property
    def headers(self) -> Mapping[str, Any]:
        """The headers beside its value."""


@contextmanager
def handling(received: _Carrier, name: str) -> Iterator[None]:
    """A span for a job, record or message that you took yourself, by ``pop`` or in a loop.

    It continues the trace of whoever sent it to ``name``. Handlers given to ``subscribe`` have
    their span already.
    """
    if not telemetry.in_use():
        yield
        return
    with telemetry.processing(name, received.headers):
        yield
