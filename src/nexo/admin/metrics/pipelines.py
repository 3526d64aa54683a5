"""Metrics of the pipelines that take streams to the lake."""

from __future__ import annotations

import heapq
import time
from collections.abc import Iterator
from operator import attrgetter

from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from nexo.admin.metrics.families import Counter, Gauge, Row, families
from nexo.admin.metrics.named import SHOWN
from nexo.admin.watching.sampler import Sampler
from nexo.lake.progress import StreamProgress, by_stream


def _late_s(row: StreamProgress) -> float | None:
    return None if row.fresh_ms is None else max(0.0, time.time() - row.fresh_ms / 1000)


def _committed_s(row: StreamProgress) -> float | None:
    return None if row.committed_ms is None else row.committed_ms / 1000


_PIPELINED: tuple[Row, ...] = (
    (Gauge, "nexo_pipeline_records", "Records in the table.", attrgetter("records")),
    (Gauge, "nexo_pipeline_files", "Data files of the table.", attrgetter("files")),
    (Gauge, "nexo_pipeline_bytes", "Size of the table.", attrgetter("bytes")),
    (Gauge, "nexo_pipeline_behind_records", "Records that readers may see and the table lacks.",
     attrgetter("behind")),
    (Gauge, "nexo_pipeline_late_seconds",
     "Age of the oldest moment whose records may be missing in the table.", _late_s),
    (Gauge, "nexo_pipeline_commit_timestamp_seconds", "When the newest snapshot was committed.",
     _committed_s),
    (Gauge, "nexo_pipeline_last_batch_seconds", "How long the last micro-batch took.",
     lambda row: row.last_ms / 1000),
    (Gauge, "nexo_pipeline_dead_letters", "Records whose value did not fit the typed columns.",
     attrgetter("dead_letters")),
    (Gauge, "nexo_pipeline_failing", "Whether the last micro-batch failed.",
     lambda row: float(bool(row.error))),
    (Counter, "nexo_pipeline_taken_records", "Records that the pipeline committed.",
     attrgetter("taken")),
    (Counter, "nexo_pipeline_batches", "Micro-batches that it committed.", attrgetter("batches")),
    (Counter, "nexo_pipeline_lost_races", "Micro-batches that another pipeline committed first.",
     attrgetter("lost_races")),
)  # fmt: skip


class PipelineReadings(Collector):
    """Makes metrics of what pipelines have written down."""

    def __init__(self, sampler: Sampler) -> None:
        self._sampler = sampler

    def collect(self) -> Iterator[Metric]:
        """Every metric; of the streams with the most records at most `SHOWN`."""
        pipelines = self._sampler.pipelines
        running = sum(each.alive(int(time.time() * 1000)) for each in pipelines)
        yield Gauge("nexo_pipelines_running", "Pipelines at work.", running)
        every = by_stream(pipelines).values()
        rows = heapq.nlargest(SHOWN, every, lambda row: row.records)
        yield Gauge("nexo_pipeline_streams", "Streams that pipelines take to the lake.", len(every))
        yield from families(_PIPELINED, {"stream": attrgetter("stream")}, rows)
