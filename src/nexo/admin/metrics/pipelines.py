"""Metrics of the pipelines that take streams to the lake."""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Iterable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from nexo.admin.metrics.named import SHOWN
from nexo.admin.watching.sampler import Sampler
from nexo.lake.progress import StreamProgress, by_stream

_Read = Callable[[StreamProgress, float], float | None]

_GAUGES: dict[str, tuple[str, _Read]] = {
    "records": ("Records in the table.", lambda row, now_s: row.records),
    "files": ("Data files of the table.", lambda row, now_s: row.files),
    "bytes": ("Size of the table.", lambda row, now_s: row.bytes),
    "behind_records": (
        "Records that readers may see and the table lacks.", lambda row, now_s: row.behind,
    ),
    "late_seconds": (
        "Age of the oldest moment whose records may be missing in the table.",
        lambda row, now_s: None if row.fresh_ms is None else max(0.0, now_s - row.fresh_ms / 1000),
    ),
    "commit_timestamp_seconds": (
        "When the newest snapshot was committed.",
        lambda row, now_s: None if row.committed_ms is None else row.committed_ms / 1000,
    ),
    "last_batch_seconds": (
        "How long the last micro-batch took.", lambda row, now_s: row.last_ms / 1000,
    ),
    "dead_letters": (
        "Records whose value did not fit the typed columns.", lambda row, now_s: row.dead_letters,
    ),
    "failing": (
        "Whether the last micro-batch failed.", lambda row, now_s: float(bool(row.error)),
    ),
}  # fmt: skip
_COUNTERS: dict[str, tuple[str, _Read]] = {
    "taken_records": ("Records that the pipeline committed.", lambda row, now_s: row.taken),
    "batches": ("Micro-batches that it committed.", lambda row, now_s: row.batches),
    "lost_races": (
        "Micro-batches that another pipeline committed first.", lambda row, now_s: row.lost_races,
    ),
}  # fmt: skip


class PipelineReadings(Collector):
    """Makes metrics of what pipelines have written down."""

    def __init__(self, sampler: Sampler) -> None:
        self._sampler = sampler

    def describe(self) -> Iterable[Metric]:
        """Nothing is promised beforehand."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Every metric; of the streams with the most records at most `SHOWN`."""
        now_s = time.time()
        pipelines = self._sampler.pipelines
        running = sum(each.alive(int(now_s * 1000)) for each in pipelines)
        yield GaugeMetricFamily("nexo_pipelines_running", "Pipelines at work.", running)
        every = by_stream(pipelines).values()
        rows = heapq.nlargest(SHOWN, every, lambda row: row.records)
        yield GaugeMetricFamily(
            "nexo_pipeline_streams", "Streams that pipelines take to the lake.", len(every)
        )
        for name, (text, read) in _GAUGES.items():
            gauge = GaugeMetricFamily(f"nexo_pipeline_{name}", text, labels=["stream"])
            _fill(gauge, rows, read, now_s)
            yield gauge
        for name, (text, read) in _COUNTERS.items():
            counter = CounterMetricFamily(f"nexo_pipeline_{name}", text, labels=["stream"])
            _fill(counter, rows, read, now_s)
            yield counter


def _fill(
    family: GaugeMetricFamily | CounterMetricFamily,
    rows: Iterable[StreamProgress],
    read: _Read,
    now_s: float,
) -> None:
    for row in rows:
        value = read(row, now_s)
        if value is not None:
            family.add_metric([row.stream], value)
