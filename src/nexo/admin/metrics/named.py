"""Metrics of single queues, streams and groups: of the busiest, as each costs the reader."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Iterator
from operator import attrgetter
from typing import TypeVar

from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from nexo.admin.metrics.families import Counter, Gauge, Row, families
from nexo.admin.watching.sampler import Sampler
from nexo.admin.watching.survey import queue_rank
from nexo.admin.watching.watch import GroupWatch, StreamWatch
from nexo.model import Broker

SHOWN = 1_000
"""Of each kind; the sums in `nexo.admin.metrics.prometheus` are over all."""

_QUEUES: tuple[Row, ...] = (
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
_STREAMS: tuple[Row, ...] = (
    (Gauge, "nexo_stream_offsets", "From the first to the next offset, over all partitions.",
     attrgetter("info.offsets")),
    (Gauge, "nexo_stream_bytes", "Size of the local log.", attrgetter("info.bytes")),
    (Counter, "nexo_stream_appended", "Records ever.", attrgetter("info.published")),
)  # fmt: skip
_GROUPS: tuple[Row, ...] = (
    (Gauge, "nexo_group_lag_records", "Records not finished.", attrgetter("info.lag")),
    (Gauge, "nexo_group_pending_records", "Records in work.", attrgetter("info.in_flight")),
    (Gauge, "nexo_group_parked_records", "Records set aside.", attrgetter("info.parked")),
    (Gauge, "nexo_group_consumers", "Consumers.", attrgetter("info.consumers")),
)
_NAME = attrgetter("info.name")
_GROUP = {"stream": attrgetter("info.stream"), "group": _NAME, "kind": attrgetter("info.kind")}

W = TypeVar("W")


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
