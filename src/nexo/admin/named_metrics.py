"""Metrics from tables, and those of everything that has a name: queues, streams, groups, lake
tables. Of each kind only the busiest have metrics, as each costs the reader.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from operator import attrgetter
from typing import Any, TypeAlias, TypeVar

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from nexo.admin.watching.sampler import Sampler
from nexo.admin.watching.survey import queue_rank
from nexo.admin.watching.watch import GroupWatch, StreamWatch
from nexo.lake.progress import FlowProgress, StreamProgress, by_flow, by_stream, by_table
from nexo.model import Broker

Counter: TypeAlias = CounterMetricFamily
Gauge: TypeAlias = GaugeMetricFamily
ReadMetric: TypeAlias = Callable[[Any], float | None]
"""The value of a thing; None if it is not known."""
MetricRow: TypeAlias = tuple[type[Counter] | type[Gauge], str, str, ReadMetric]
"""A metric's type, name and text, and where its values are."""

SHOWN = 1_000
"""Of each kind; the sums in `nexo.admin.prometheus` are over all."""

_QUEUES: tuple[MetricRow, ...] = (
    (Gauge, "nexo_queue_waiting_jobs", "Jobs ready to run.", attrgetter("info.waiting")),
    (Gauge, "nexo_queue_scheduled_jobs", "Jobs delayed or waiting for a retry.",
     attrgetter("info.scheduled")),
    (Gauge, "nexo_queue_working_jobs", "Jobs leased to consumers.", attrgetter("info.working")),
    (Gauge, "nexo_queue_dead_jobs", "Dead letters.", attrgetter("info.dead")),
    (Counter, "nexo_queue_pushed", "Jobs pushed.", attrgetter("info.pushed_total")),
    (Counter, "nexo_queue_finished", "Jobs acknowledged.", attrgetter("info.finished_total")),
    (Counter, "nexo_queue_failed", "Deliveries that failed and are tried again.",
     attrgetter("info.failed_total")),
    (Counter, "nexo_queue_died", "Jobs that became dead letters.", attrgetter("info.died_total")),
)  # fmt: skip
_STREAMS: tuple[MetricRow, ...] = (
    (Gauge, "nexo_stream_offsets", "From the first to the next offset, over all partitions.",
     attrgetter("info.offsets")),
    (Gauge, "nexo_stream_bytes", "Size of the local log.", attrgetter("info.bytes")),
    (Counter, "nexo_stream_appended", "Records ever.", attrgetter("info.published")),
)  # fmt: skip
_GROUPS: tuple[MetricRow, ...] = (
    (Gauge, "nexo_group_lag_records", "Records not finished.", attrgetter("info.lag")),
    (Gauge, "nexo_group_pending_records", "Records in work.", attrgetter("info.in_flight")),
    (Gauge, "nexo_group_parked_records", "Records set aside.", attrgetter("info.parked")),
    (Gauge, "nexo_group_consumers", "Consumers.", attrgetter("info.consumers")),
)
_NAME = attrgetter("info.name")
_GROUP = {"stream": attrgetter("info.stream"), "group": _NAME, "kind": attrgetter("info.kind")}

W = TypeVar("W")


def _late_s(row: StreamProgress) -> float | None:
    return None if row.fresh_ms is None else max(0.0, time.time() - row.fresh_ms / 1000)


def _waiting_s(row: FlowProgress) -> float | None:
    return None if row.waiting_since_ms is None else row.waiting_since_ms / 1000


def _committed_s(row: StreamProgress | FlowProgress) -> float | None:
    return None if row.committed_ms is None else row.committed_ms / 1000


_PIPELINED: tuple[MetricRow, ...] = (
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
    (Gauge, "nexo_pipeline_missing_records",
     "Records that were lost to the table when another program rolled it back.",
     attrgetter("missing")),
    (Gauge, "nexo_pipeline_failing", "Whether the last micro-batch failed.",
     lambda row: float(bool(row.error))),
    (Counter, "nexo_pipeline_taken_records", "Records that the pipeline committed.",
     attrgetter("taken")),
    (Counter, "nexo_pipeline_batches", "Micro-batches that it committed.", attrgetter("batches")),
    (Counter, "nexo_pipeline_lost_races", "Micro-batches that another pipeline committed first.",
     attrgetter("lost_races")),
)  # fmt: skip


_FLOWS: tuple[MetricRow, ...] = (
    (Counter, "nexo_flow_rows", "Rows that a flow of users' code wrote.", attrgetter("rows")),
    (Counter, "nexo_flow_dropped_rows", "Rows that expectations kept out of its table.",
     attrgetter("dropped")),
    (Counter, "nexo_flow_batches", "Batches that it committed.", attrgetter("batches")),
    (Gauge, "nexo_flow_behind", "Records of streams, and commits of tables, that it has to read.",
     attrgetter("behind")),
    (Gauge, "nexo_flow_failing", "Whether it stands still, or is held by one above it.",
     lambda row: float(row.state in ("failed", "held"))),
    (Gauge, "nexo_flow_last_batch_seconds", "How long its last batch took.",
     lambda row: row.last_ms / 1000),
    (Gauge, "nexo_flow_commit_timestamp_seconds", "When its table was committed to.", _committed_s),
    (Gauge, "nexo_flow_table_records", "Records in its table.", attrgetter("records")),
    (Gauge, "nexo_flow_table_small_files", "Small files of its table.", attrgetter("small_files")),
    (Gauge, "nexo_flow_waiting_changes", "Changes to be merged into its table's rows.",
     attrgetter("waiting")),
    (Gauge, "nexo_flow_waiting_timestamp_seconds", "When the oldest of them came.", _waiting_s),
)  # fmt: skip


_DEBTS: tuple[MetricRow, ...] = (
    (Gauge, "nexo_lake_small_files", "Files of a table that are to be merged.",
     attrgetter("small_files")),
    (Gauge, "nexo_lake_small_bytes", "Their size.", attrgetter("small_bytes")),
    (Gauge, "nexo_lake_merge_behind_seconds", "How long merging them takes at the present pace.",
     attrgetter("behind_s")),
)  # fmt: skip


def families(
    table: Iterable[MetricRow], labels: Mapping[str, Callable[[Any], str]], things: Iterable[Any]
) -> Iterator[Metric]:
    """Each metric of the table, of all things; ``labels`` says how these are called."""
    named = [([read(thing) for read in labels.values()], thing) for thing in things]
    for kind, name, text, read in table:
        family = kind(name, text, labels=[*labels])
        for names, thing in named:
            value = read(thing)
            if value is not None:
                family.add_metric(names, value)
        yield family


class NamedReadings(Collector):
    """Makes metrics of what the sampler has seen of each thing that has a name."""

    def __init__(self, sampler: Sampler) -> None:
        self._sampler = sampler

    def collect(self) -> Iterator[Metric]:
        """Every metric."""
        survey = self._sampler.survey
        queues = busiest(survey.queues.watches.values(), queue_rank)
        streams = busiest(survey.streams.watches.values(), _stream_rank)
        groups = busiest(survey.groups.watches.values(), _group_rank)
        yield from families(_QUEUES, {"queue": _NAME}, queues)
        yield from families(_STREAMS, {"stream": _NAME}, streams)
        yield from families(_GROUPS, _GROUP, groups)
        yield self._left_out(queues=len(queues), streams=len(streams), groups=len(groups))
        yield from self._pipelines()

    def _pipelines(self) -> Iterator[Metric]:
        """The progress of pipelines, for the streams with the most records."""
        pipelines = self._sampler.pipelines
        running = sum(each.alive(int(time.time() * 1000)) for each in pipelines)
        yield Gauge("nexo_pipelines_running", "Pipelines at work.", running)
        every = by_stream(pipelines).values()
        yield Gauge("nexo_pipeline_streams", "Streams that pipelines take to the lake.", len(every))
        rows = heapq.nlargest(SHOWN, every, attrgetter("records"))
        yield from families(_PIPELINED, {"stream": attrgetter("stream")}, rows)
        labels = {"flow": attrgetter("flow"), "table": attrgetter("target")}
        flows = heapq.nlargest(SHOWN, by_flow(pipelines).values(), attrgetter("records"))
        yield from families(_FLOWS, labels, flows)
        debts = heapq.nlargest(SHOWN, by_table(pipelines).values(), attrgetter("behind_s"))
        yield from families(_DEBTS, {"table": attrgetter("table")}, debts)

    def _left_out(self, **shown: int) -> Metric:
        family = Gauge(
            "nexo_metrics_left_out",
            "Queues, streams and groups that have no metrics of their own.",
            labels=["kind"],
        )
        brokers = {"queues": Broker.QUEUE, "streams": Broker.STREAM, "groups": Broker.STREAM}
        for kind, broker in brokers.items():
            known = self._sampler.brokers[broker].status.get(kind, 0)
            family.add_metric([kind], max(0, known - shown[kind]))
        return family


def busiest(watches: Collection[W], rank: Callable[[W], tuple[float, int]]) -> list[W]:
    """All, or the `SHOWN` with the most traffic and then the most to do."""
    if len(watches) <= SHOWN:
        return list(watches)
    return heapq.nlargest(SHOWN, watches, rank)


def _stream_rank(watch: StreamWatch) -> tuple[float, int]:
    return watch.published.series.last or 0.0, watch.info.offsets


def _group_rank(watch: GroupWatch) -> tuple[float, int]:
    return watch.finished.series.last or 0.0, watch.info.lag
