"""What ``/metrics`` tells, and how much of it at most (SPEC K4)."""

from __future__ import annotations

from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from nexo.admin.named_metrics import SHOWN, NamedReadings
from nexo.admin.prometheus import Metrics, Readings
from nexo.admin.watching.sampler import Sampler
from nexo.admin.watching.watch import StreamWatch
from nexo.client._async.client import AsyncClient
from nexo.config import Settings
from nexo.lake.progress import Tracker, now_ms
from nexo.model import Broker
from nexo.model.histogram import BOUNDS_S, Histogram
from nexo.model.stream import StreamSeen

MS = 1_000_000


def make_sampler() -> Sampler:
    return Sampler(AsyncClient("nexo://127.0.0.1:1"), Settings())


def samples(*collectors: Any) -> dict[str, float]:
    """Each sample of the text by its name and labels."""
    registry = CollectorRegistry(auto_describe=False)
    for collector in collectors:
        registry.register(collector)
    text = generate_latest(registry).decode()
    return {
        f"{sample.name}{''.join(f' {value}' for value in sample.labels.values())}": sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


async def test_request_and_sync_times_are_histograms() -> None:
    sampler, times = make_sampler(), Histogram()
    times.add(3 * MS, 1_000)
    times.add(100_000 * MS)
    status = {"requests": {"map_get": times.status()}, "disk": {"sync_times": times.status()}}
    sampler.brokers[Broker.STORE].answered(status, 0.001, 1)
    found = samples(Readings(sampler))
    for name in ("nexo_request_seconds", "nexo_disk_sync_seconds"):
        labels = " store map_get" if "request" in name else " store"
        assert found[f"{name}_count{labels}"] == 1_001
        assert found[f"{name}_sum{labels}"] == 103
        below = [value for key, value in found.items() if key.startswith(f"{name}_bucket")]
        assert len(below) == len(BOUNDS_S) + 1
        assert below == sorted(below)
        assert set(below) == {0, 1_000, 1_001}


async def test_the_busiest_have_metrics_of_their_own_and_the_rest_is_counted() -> None:
    sampler, count = make_sampler(), SHOWN + 200
    for number in range(count):
        for second, published in enumerate((0, number)):
            info = StreamSeen(f"s{number}", 1, 5, 100, published, 0)
            sampler.survey.streams.see(info.name, info, float(second), StreamWatch)
    sampler.brokers[Broker.STREAM].answered({"streams": count, "groups": 0}, 0.001, 1)
    found = samples(NamedReadings(sampler))
    shown = {key for key in found if key.startswith("nexo_stream_offsets ")}
    assert shown == {f"nexo_stream_offsets s{number}" for number in range(200, count)}
    assert found["nexo_metrics_left_out streams"] == 200
    assert found["nexo_metrics_left_out queues"] == 0


async def test_a_pipelines_progress_is_shown() -> None:
    tracker = Tracker()
    row = tracker.of("orders")
    row.records, row.behind, row.taken, row.last_ms = 500, 7, 40, 1_500.0
    row.fresh_ms, row.error = now_ms() - 60_000, "no space"
    sampler = make_sampler()
    sampler.pipelines = [tracker.pipeline]
    found = samples(NamedReadings(sampler))
    assert found["nexo_pipelines_running"] == found["nexo_pipeline_streams"] == 1
    assert found["nexo_pipeline_records orders"] == 500
    assert found["nexo_pipeline_behind_records orders"] == 7
    assert found["nexo_pipeline_taken_records_total orders"] == 40
    assert found["nexo_pipeline_last_batch_seconds orders"] == 1.5
    assert found["nexo_pipeline_failing orders"] == 1
    assert 60 <= found["nexo_pipeline_late_seconds orders"] < 600
    assert "nexo_pipeline_commit_timestamp_seconds orders" not in found


async def test_without_a_lake_there_is_nothing_to_say_of_one() -> None:
    text = Metrics(make_sampler()).text()
    assert b"nexo_pipelines_running 0.0" in text
    assert b"nexo_pipeline_records{" not in text
