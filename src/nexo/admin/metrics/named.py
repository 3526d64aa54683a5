"""Metrics of single queues, streams and groups: of the busiest, as each costs the reader."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import TypeVar

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from nexo.admin.watching.sampler import Sampler
from nexo.admin.watching.survey import queue_rank
from nexo.admin.watching.watch import GroupWatch, QueueWatch, StreamWatch
from nexo.model import Broker

SHOWN = 1_000
"""Of each kind; the sums in `nexo.admin.metrics.prometheus` are over all."""

_QUEUE_GAUGES = {
    "waiting": ("nexo_queue_waiting_jobs", "Jobs ready to run."),
    "scheduled": ("nexo_queue_scheduled_jobs", "Jobs delayed or waiting for a retry."),
    "working": ("nexo_queue_working_jobs", "Jobs leased to consumers."),
    "dead": ("nexo_queue_dead_jobs", "Dead letters."),
}
_QUEUE_COUNTERS = {
    "pushed_total": ("nexo_queue_pushed", "Jobs pushed."),
    "finished_total": ("nexo_queue_finished", "Jobs acknowledged."),
    "failed_total": ("nexo_queue_failed", "Deliveries that failed and are tried again."),
    "died_total": ("nexo_queue_died", "Jobs that became dead letters."),
}
_STREAM_GAUGES = {
    "offsets": ("nexo_stream_offsets", "From the first to the next offset, over all partitions."),
    "bytes": ("nexo_stream_bytes", "Size of the local log."),
}
_GROUP_GAUGES = {
    "lag": ("nexo_group_lag_records", "Records not finished."),
    "in_flight": ("nexo_group_pending_records", "Records in work."),
    "parked": ("nexo_group_parked_records", "Records set aside."),
    "consumers": ("nexo_group_consumers", "Consumers."),
}

W = TypeVar("W")


class NamedReadings(Collector):
    """Makes metrics of what the sampler has seen of each thing that has a name."""

    def __init__(self, sampler: Sampler) -> None:
        self._sampler = sampler

    def describe(self) -> Iterable[Metric]:
        """Nothing is promised beforehand."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Every metric."""
        survey = self._sampler.survey
        queues = busiest(survey.queues.watches.values(), queue_rank)
        streams = busiest(survey.streams.watches.values(), _stream_rank)
        groups = busiest(survey.groups.watches.values(), _group_rank)
        yield from _queues(queues)
        yield from _streams(streams)
        yield from _groups(groups)
        yield self._left_out(queues=len(queues), streams=len(streams), groups=len(groups))

    def _left_out(self, **shown: int) -> Metric:
        family = GaugeMetricFamily(
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


def _queues(queues: list[QueueWatch]) -> Iterator[Metric]:
    for key, (name, text) in _QUEUE_GAUGES.items():
        gauge = GaugeMetricFamily(name, text, labels=["queue"])
        for queue in queues:
            gauge.add_metric([queue.info.name], getattr(queue.info, key))
        yield gauge
    for key, (name, text) in _QUEUE_COUNTERS.items():
        counter = CounterMetricFamily(name, text, labels=["queue"])
        for queue in queues:
            counter.add_metric([queue.info.name], getattr(queue.info, key))
        yield counter


def _streams(streams: list[StreamWatch]) -> Iterator[Metric]:
    for key, (name, text) in _STREAM_GAUGES.items():
        family = GaugeMetricFamily(name, text, labels=["stream"])
        for watch in streams:
            family.add_metric([watch.info.name], getattr(watch.info, key))
        yield family
    taken = CounterMetricFamily("nexo_stream_appended", "Records ever.", labels=["stream"])
    for watch in streams:
        taken.add_metric([watch.info.name], watch.info.published)
    yield taken


def _groups(groups: list[GroupWatch]) -> Iterator[Metric]:
    for key, (name, text) in _GROUP_GAUGES.items():
        family = GaugeMetricFamily(name, text, labels=["stream", "group", "kind"])
        for group in groups:
            info = group.info
            family.add_metric([info.stream, info.name, info.kind], getattr(info, key))
        yield family
