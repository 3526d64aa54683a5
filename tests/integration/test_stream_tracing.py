"""Handling a record is linked to publishing it where OpenTelemetry is used."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from queue import Queue
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import nexo
from nexo.errors import InvalidInput

WAIT_S = 20.0

_exporter = InMemorySpanExporter()
_provider = TracerProvider()
_provider.add_span_processor(SimpleSpanProcessor(_exporter))


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: _provider)
    _exporter.clear()
    yield _exporter
    _exporter.clear()


def named(spans: InMemorySpanExporter, name: str) -> list[ReadableSpan]:
    return [span for span in spans.get_finished_spans() if span.name == name]


def test_without_a_tracer_provider_nothing_is_traced(client: nexo.Client) -> None:
    """A library that imports the API, as Redis's does, must not make publishing slower."""
    assert type(client.stream("orders")).__name__ == "Stream"


def test_handling_is_linked_to_publishing(client: nexo.Client, spans: InMemorySpanExporter) -> None:
    stream = client.stream("orders").create()
    stream.publish("x", headers={"mine": 1})
    stream.publish_many(["y", "z"])
    seen: Queue[dict[str, Any]] = Queue()
    subscription = stream.subscribe("billing", lambda record: seen.put(record.headers))
    headers = [seen.get(timeout=WAIT_S) for _ in range(3)]
    subscription.close()
    published, together = named(spans, "publish orders")
    processed = named(spans, "process orders")
    origins = [span.links[0].context.span_id for span in processed]
    assert published.context is not None
    assert together.context is not None
    assert origins == [published.context.span_id, *[together.context.span_id] * 2]
    assert headers[0]["mine"] == 1
    attributes = processed[0].attributes or {}
    assert attributes["messaging.consumer.group.name"] == "billing"


async def test_async_handlers_are_traced_and_errors_recorded(
    aclient: nexo.AsyncClient, spans: InMemorySpanExporter
) -> None:
    stream = await aclient.stream("orders").create()
    await stream.publish("x")
    tries: list[int] = []
    done = asyncio.Event()

    async def handle(record: object) -> None:
        tries.append(trace.get_current_span().get_span_context().span_id)
        if len(tries) == 1:
            raise ValueError("once")
        done.set()

    subscription = await stream.subscribe("g", handle)
    async with asyncio.timeout(WAIT_S):
        await done.wait()
    await subscription.close()
    failed, succeeded = named(spans, "process orders")
    assert [span.context.span_id for span in (failed, succeeded) if span.context] == tries
    assert (failed.status.is_ok, succeeded.status.is_ok) == (False, True)


def test_bad_input_is_refused_as_without_tracing(
    client: nexo.Client, spans: InMemorySpanExporter
) -> None:  # SPEC F5
    stream = client.stream("orders").create()
    with pytest.raises(InvalidInput, match="function"):
        stream.subscribe("g", None)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="headers"):
        stream.publish("x", headers="x")  # type: ignore[arg-type]
    assert stream.groups() == []
    assert stream.read() == []


def test_without_a_recorder_no_headers_are_added(client: nexo.Client) -> None:
    stream = client.stream("plain").create()
    stream.publish("x")
    stream.publish_many(["y"])
    assert [record.headers for record in stream.read()] == [{}, {}]


def test_the_client_does_not_import_opentelemetry(nexo_url: str) -> None:
    program = (
        "import nexo, sys\n"
        f"with nexo.connect({nexo_url!r}) as client:\n"
        "    stream = client.stream('s').create()\n"
        "    stream.publish('x')\n"
        "    print(type(stream).__name__, 'opentelemetry' in sys.modules)\n"
    )
    said = subprocess.run([sys.executable, "-c", program], check=True, stdout=subprocess.PIPE)
    assert said.stdout == b"Stream False\n"
