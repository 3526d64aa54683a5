"""One trace through every broker that carries messages (SPEC M5)."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tomllib
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI, Request
from fastapi.testclient import TestClient
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import nexo
from nexo import topics
from nexo.client import telemetry
from nexo.integrations.asgi import Nexo
from nexo.integrations.opentelemetry import NexoInstrumentor, handling
from nexo.types import AsyncJob, AsyncStreamRecord, Job, Message
from tests.timing import wait_until

PYPROJECT = Path(__file__).parents[2] / "pyproject.toml"


@pytest.fixture
def spans() -> Iterator[InMemorySpanExporter]:
    """What is traced, by a provider that only Nexo's clients are given."""
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    NexoInstrumentor().instrument(tracer_provider=provider)
    yield exporter
    NexoInstrumentor().uninstrument()
    telemetry.settings.disabled = False


def named(spans: InMemorySpanExporter, name: str) -> ReadableSpan:
    (span,) = [span for span in spans.get_finished_spans() if span.name == name]
    return span


def chain(spans: InMemorySpanExporter, last: str) -> list[str]:
    """The names of a span and its causes, first to last; each of one trace."""
    by_id = {span.context.span_id: span for span in spans.get_finished_spans() if span.context}
    span: ReadableSpan | None = named(spans, last)
    found: list[ReadableSpan] = []
    while span is not None:
        found.append(span)
        span = by_id.get(span.parent.span_id) if span.parent else None
    assert len({each.context.trace_id for each in found if each.context}) == 1
    return [each.name for each in reversed(found)]


def test_one_trace_from_a_request_through_job_record_and_message(
    url: str, spans: InMemorySpanExporter
) -> None:
    broker, heard = Nexo(url), asyncio.Event()
    tracer = telemetry.settings.provider.get_tracer("test")

    @asynccontextmanager
    async def handlers(app: FastAPI) -> AsyncIterator[None]:
        client = broker(app)
        orders = await client.queue("orders").create()
        audit = await client.stream("audit").create()

        async def ship(job: AsyncJob[Any]) -> None:
            await audit.publish(job.value)

        async def note(record: AsyncStreamRecord[Any]) -> None:
            await client.pubsub.publish("shipped/1", record.value)

        def show(message: Message[Any]) -> None:
            heard.set()

        await client.pubsub.subscribe("shipped/#", show)
        await audit.subscribe("mail", note)
        await orders.subscribe(ship)
        yield

    app = FastAPI(lifespan=broker.around(handlers))

    @app.post("/order")
    async def order(request: Request) -> str:
        client = broker.client(request)
        with tracer.start_as_current_span("POST /order", kind=trace.SpanKind.SERVER):
            return await client.queue("orders").push({"item": 7}, headers={"mine": 1})

    with TestClient(app) as browser:
        assert browser.post("/order").status_code == 200
        wait_until(heard.is_set)
    assert chain(spans, "process shipped/1") == [
        "POST /order",
        "push orders",
        "process orders",
        "publish audit",
        "process audit",
        "publish shipped/1",
        "process shipped/1",
    ]
    for name in ("orders", "audit", "shipped/1"):
        span = named(spans, f"process {name}")
        cause = named(spans, f"{'push' if name == 'orders' else 'publish'} {name}").context
        assert cause is not None
        assert [link.context.span_id for link in span.links] == [cause.span_id]
        assert (span.attributes or {})["messaging.destination.name"] == name


def test_sync_handlers_and_push_many_are_traced(url: str, spans: InMemorySpanExporter) -> None:
    seen: list[dict[str, Any]] = []
    with nexo.connect(url) as client:
        queue = client.queue("q").create()
        queue.push_many(["a", "b"], headers=[{"mine": 1}, None])
        queue.push("c")

        def fail_once(job: Job[Any]) -> None:
            seen.append(job.headers)
            if len(seen) == 1:
                raise ValueError("once")

        with queue.subscribe(fail_once, concurrency=1):
            wait_until(lambda: len(seen) == 4)
    assert all("traceparent" in headers for headers in seen)
    assert [headers.get("mine") for headers in seen].count(1) == 2, "a was tried twice"
    processed = [span for span in spans.get_finished_spans() if span.name == "process q"]
    assert [span.status.is_ok for span in processed] == [False, True, True, True]
    attempts = [(span.attributes or {})["nexo.job.attempt"] for span in processed]
    assert sorted(map(str, attempts)) == ["1", "1", "1", "2"]


def test_transactions_topics_and_batches_are_traced(url: str, spans: InMemorySpanExporter) -> None:
    with nexo.connect(url) as client:
        client.stream("paid").create()
        with client.transaction() as tx:
            tx.publish("paid", 1, headers={"mine": 1})
        with (
            topics.Producer(server=client) as producer,
            topics.Topic("sent", server=client) as sent,
        ):
            sent.create()
            producer.send("sent", 1)
            sent.produce(2)
            sent.produce_batch([{"value": 3}, {"value": 4}])
        client.pubsub.publish_many("news", [5, 6])
        paid, sent_ones = _read(client, "paid"), _read(client, "sent")
    assert paid[0]["mine"] == 1
    published = {
        name: [_id(span) for span in spans.get_finished_spans() if span.name == f"publish {name}"]
        for name in ("paid", "sent", "news")
    }
    assert [_cause(headers) for headers in paid] == published["paid"]
    first, second, both = published["sent"]
    assert sorted(map(_cause, sent_ones)) == sorted([first, second, both, both])
    assert len(published["news"]) == 1


def _read(client: nexo.Client, stream: str) -> list[dict[str, Any]]:
    return [record.headers for record in client.stream(stream).read()]


def _cause(headers: dict[str, Any]) -> str:
    return str(headers["traceparent"]).split("-")[2]


def _id(span: ReadableSpan) -> str:
    assert span.context is not None
    return f"{span.context.span_id:016x}"


def test_requests_and_replies_are_one_trace(url: str, spans: InMemorySpanExporter) -> None:
    with nexo.connect(url) as client:
        client.pubsub.reply("math/double", lambda message: message.value * 2)
        assert client.pubsub.request("math/double", 21, timeout=20) == 42
        wait_until(lambda: "process math/double" in [s.name for s in spans.get_finished_spans()])
    assert chain(spans, "process math/double") == ["publish math/double", "process math/double"]


def test_loops_of_ones_own_continue_a_trace(url: str, spans: InMemorySpanExporter) -> None:
    with nexo.connect(url) as client:
        queue = client.queue("q").create()
        queue.push("a")
        (job,) = queue.pop()
        with handling(job, "q"):
            job.ack()
    assert chain(spans, "process q") == ["push q", "process q"]


def test_uninstrumented_nothing_is_traced(url: str, spans: InMemorySpanExporter) -> None:
    NexoInstrumentor().uninstrument()
    with nexo.connect(url) as client:
        queue = client.queue("q").create()
        queue.push("a")
        (job,) = queue.pop()
        with handling(job, "q"):
            assert job.headers == {}
        assert type(client.pubsub).__name__ == "PubSub"
    assert spans.get_finished_spans() == ()
    NexoInstrumentor().instrument(tracer_provider=TracerProvider())


def test_opentelemetry_instrument_finds_it_by_the_entry_point(tmp_path: Path) -> None:
    """As an installed package names it; the one of this repository may be older."""
    installed = tmp_path / "found-1.dist-info"
    installed.mkdir()
    entries = tomllib.loads(PYPROJECT.read_text())["project"]["entry-points"]
    ((name, target),) = entries["opentelemetry_instrumentor"].items()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: found\nVersion: 1\n")
    (installed / "entry_points.txt").write_text(
        f"[opentelemetry_instrumentor]\nonly-{name} = {target}\n"
    )
    program = (
        "from nexo.integrations.opentelemetry import NexoInstrumentor as N\n"
        "print(N().is_instrumented_by_opentelemetry)"
    )
    command = Path(sys.executable).with_name("opentelemetry-instrument")
    env = {**os.environ, "PYTHONPATH": f"{PYPROJECT.parent / 'src'}:{tmp_path}"}
    said = subprocess.run(
        [command, sys.executable, "-c", program], check=True, env=env, stdout=subprocess.PIPE
    )
    assert said.stdout.split() == [b"True"]
