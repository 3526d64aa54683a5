"""``/metrics``: the newest readings in Prometheus' text format."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from nexo.admin.sampler import Sampler
from nexo.model import Broker

SHOWN = 1_000
"""Queues, streams and groups with metrics of their own; the sums are over all."""
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_COUNTERS: dict[Broker, dict[str, tuple[str, str]]] = {
    Broker.STORE: {
        "commands": ("nexo_store_commands", "Commands carried out."),
        "hits": ("nexo_store_hits", "Reads that found their key."),
        "misses": ("nexo_store_misses", "Reads that found nothing."),
        "expired": ("nexo_store_expired_keys", "Keys whose time was over."),
        "evicted": ("nexo_store_evicted_keys", "Keys given up for the memory budget."),
    },
    Broker.PUBSUB: {
        "published": ("nexo_pubsub_published", "Messages published."),
        "delivered": ("nexo_pubsub_delivered", "Copies delivered to subscribers."),
        "dropped": ("nexo_pubsub_dropped", "Copies dropped for slow subscribers."),
    },
    Broker.QUEUE: {},
    Broker.STREAM: {
        "published": ("nexo_stream_published", "Records taken in."),
    },
}
_GAUGES: dict[Broker, dict[str, tuple[str, str]]] = {
    Broker.STORE: {
        "keys": ("nexo_store_keys", "Keys held."),
        "keys_with_ttl": ("nexo_store_keys_with_ttl", "Keys that will expire."),
        "used_bytes": ("nexo_store_used_bytes", "Memory counted against the budget."),
        "max_bytes": ("nexo_store_max_bytes", "The memory budget; 0 for none."),
    },
    Broker.PUBSUB: {
        "subscribers": ("nexo_pubsub_subscribers", "Clients with subscriptions."),
        "subscriptions": ("nexo_pubsub_subscriptions", "Subscriptions."),
        "retained": ("nexo_pubsub_retained", "Topics with a retained message."),
        "retained_bytes": ("nexo_pubsub_retained_bytes", "Size of all retained messages."),
    },
    Broker.QUEUE: {
        "queues": ("nexo_queue_queues", "Queues."),
    },
    Broker.STREAM: {
        "streams": ("nexo_stream_streams", "Streams."),
        "groups": ("nexo_stream_groups", "Shared groups of all streams."),
        "transactions": ("nexo_stream_open_transactions", "Transactions not decided yet."),
        "unsynced_bytes": ("nexo_stream_unsynced_bytes", "Published bytes not yet synced."),
    },
}
_QUEUE_GAUGES = {
    "waiting": ("nexo_queue_waiting_jobs", "Jobs ready to run."),
    "scheduled": ("nexo_queue_scheduled_jobs", "Jobs delayed or waiting for a retry."),
    "working": ("nexo_queue_working_jobs", "Jobs leased to consumers."),
    "dead": ("nexo_queue_dead_jobs", "Dead letters."),
}
_QUEUE_COUNTERS = {
    "pushed_total": ("nexo_queue_pushed", "Jobs pushed."),
    "finished_total": ("nexo_queue_finished", "Jobs acknowledged."),
    "failed_total": ("nexo_queue_failed", "Deliveries that failed."),
    "died_total": ("nexo_queue_died", "Jobs that became dead letters."),
}


class Readings(Collector):
    """Makes metrics of what the sampler has seen; asks the brokers nothing."""

    def __init__(self, sampler: Sampler) -> None:
        self._sampler = sampler

    def describe(self) -> Iterable[Metric]:
        """Nothing is promised beforehand."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Every metric."""
        yield self._gauge("nexo_up", "Whether the broker answers.", lambda w: float(w.up))
        yield from self._totals()
        yield from self._processes()
        yield self._roundtrips()
        yield from self._queues()
        yield from self._streams()
        yield from self._groups()
        yield self._alerts()

    # -- brokers ------------------------------------------------------------------------

    def _gauge(self, name: str, text: str, read: Callable[[Any], float | None]) -> Metric:
        family = GaugeMetricFamily(name, text, labels=["broker"])
        for watch in self._sampler.brokers.values():
            value = read(watch)
            if value is not None:
                family.add_metric([watch.broker.label], value)
        return family

    def _totals(self) -> Iterator[Metric]:
        for watch in self._sampler.brokers.values():
            for key, (name, text) in _COUNTERS[watch.broker].items():
                if key in watch.status:
                    yield CounterMetricFamily(name, text, watch.status[key])
            for key, (name, text) in _GAUGES[watch.broker].items():
                if key in watch.status:
                    yield GaugeMetricFamily(name, text, watch.status[key])

    def _processes(self) -> Iterator[Metric]:
        def status(*path: str) -> Callable[[Any], float | None]:
            return lambda watch: _at(watch.status if watch.up else {}, path)

        yield self._gauge("nexo_connections", "Open connections.", status("connections"))
        yield self._gauge(
            "nexo_resident_memory_bytes", "Memory of the process.", status("process", "rss_bytes")
        )
        yield self._gauge("nexo_disk_free_bytes", "Free disk.", status("disk", "free_bytes"))
        yield self._gauge(
            "nexo_disk_sync_seconds", "Recent mean time of a sync.",
            lambda watch: _thousandth(_at(watch.status, ("disk", "sync_ms"))),
        )  # fmt: skip
        yield self._gauge(
            "nexo_disk_sync_max_seconds", "Longest sync since the start.",
            lambda watch: _thousandth(_at(watch.status, ("disk", "sync_max_ms"))),
        )  # fmt: skip
        yield self._counter("nexo_disk_syncs", "Syncs to disk.", status("disk", "syncs"))
        yield self._counter(
            "nexo_process_cpu_seconds", "Processor time.", status("process", "cpu_s")
        )

    def _counter(self, name: str, text: str, read: Callable[[Any], float | None]) -> Metric:
        family = CounterMetricFamily(name, text, labels=["broker"])
        for watch in self._sampler.brokers.values():
            value = read(watch)
            if value is not None:
                family.add_metric([watch.broker.label], value)
        return family

    def _roundtrips(self) -> Metric:
        family = HistogramMetricFamily(
            "nexo_roundtrip_seconds",
            "A request to the broker and back, measured once a second.",
            labels=["broker"],
        )
        for broker, histogram in self._sampler.roundtrips.items():
            total, buckets = 0, []
            bounds = (*map(str, histogram.bounds), "+Inf")
            for bound, count in zip(bounds, histogram.counts, strict=True):
                total += count
                buckets.append((bound, float(total)))
            family.add_metric([broker.label], buckets, histogram.total)
        return family

    # -- queues, streams, groups ----------------------------------------------------------

    def _queues(self) -> Iterator[Metric]:
        queues = list(islice(self._sampler.survey.queues.watches.values(), SHOWN))
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

    def _streams(self) -> Iterator[Metric]:
        shown = {"records": "Records kept.", "bytes": "Size of the local log."}
        for key, text in shown.items():
            family = GaugeMetricFamily(f"nexo_stream_{key}", text, labels=["stream"])
            for watch in islice(self._sampler.survey.streams.watches.values(), SHOWN):
                family.add_metric([watch.info.name], getattr(watch.info, key))
            yield family

    def _groups(self) -> Iterator[Metric]:
        labels = ["stream", "group", "kind"]
        lag = GaugeMetricFamily("nexo_group_lag_records", "Records not finished.", labels=labels)
        flight = GaugeMetricFamily("nexo_group_pending_records", "Records in work.", labels=labels)
        parked = GaugeMetricFamily("nexo_group_parked_records", "Records set aside.", labels=labels)
        members = GaugeMetricFamily("nexo_group_consumers", "Consumers.", labels=labels)
        for key, group in islice(self._sampler.survey.groups.watches.items(), SHOWN):
            lag.add_metric(key, group.info.lag)
            flight.add_metric(key, group.info.in_flight)
            parked.add_metric(key, group.info.parked)
            members.add_metric(key, group.info.consumers)
        yield from (lag, flight, parked, members)

    def _alerts(self) -> Metric:
        family = GaugeMetricFamily("nexo_alerts", "Alerts that stand.", labels=["level"])
        for level, count in self._sampler.alert_counts.items():
            family.add_metric([level], count)
        return family


class Metrics:
    """What ``/metrics`` answers."""

    def __init__(self, sampler: Sampler) -> None:
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(Readings(sampler))
        self.requests = Histogram(
            "nexo_http_request_duration_seconds",
            "HTTP requests to the dashboard and its API.",
            ["method", "status"],
            registry=self._registry,
        )

    def text(self) -> bytes:
        """All metrics."""
        return generate_latest(self._registry)


def _at(status: dict[str, Any], path: tuple[str, ...]) -> float | None:
    for key in path[:-1]:
        status = status.get(key, {})
    return status.get(path[-1])


def _thousandth(value: float | None) -> float | None:
    return None if value is None else value / 1000
