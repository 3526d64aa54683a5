"""``/metrics``: the newest readings in Prometheus' text format."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Any

from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from nexo.admin.metrics.named import NamedReadings
from nexo.admin.metrics.pipelines import PipelineReadings
from nexo.admin.watching.replicas import ReplicaState
from nexo.admin.watching.sampler import Sampler
from nexo.histogram import BOUNDS_S
from nexo.model import Broker

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
    Broker.QUEUE: {
        "pushed_total": ("nexo_queues_pushed", "Jobs pushed, over all queues."),
        "finished_total": ("nexo_queues_finished", "Jobs acknowledged, over all queues."),
        "failed_total": (
            "nexo_queues_failed",
            "Deliveries that failed and are tried again, over all queues.",
        ),
        "died_total": ("nexo_queues_died", "Jobs that became dead letters, over all queues."),
    },
    Broker.STREAM: {
        "published": ("nexo_stream_published", "Records taken in."),
        "finished": ("nexo_groups_finished", "Records finished, over all groups."),
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
        "waiting": ("nexo_queues_waiting_jobs", "Jobs ready to run, over all queues."),
        "scheduled": ("nexo_queues_scheduled_jobs", "Jobs delayed, over all queues."),
        "working": ("nexo_queues_working_jobs", "Jobs leased, over all queues."),
        "dead": ("nexo_queues_dead_jobs", "Dead letters, over all queues."),
    },
    Broker.STREAM: {
        "streams": ("nexo_stream_streams", "Streams."),
        "groups": ("nexo_stream_groups", "Groups of all streams."),
        "lag": ("nexo_groups_lag_records", "Records not finished, over all groups."),
        "in_flight": ("nexo_groups_pending_records", "Records in work, over all groups."),
        "parked": ("nexo_groups_parked_records", "Records set aside, over all groups."),
        "transactions": ("nexo_stream_open_transactions", "Transactions not decided yet."),
        "unsynced_bytes": ("nexo_stream_unsynced_bytes", "Published bytes not yet synced."),
    },
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
        replica = self._sampler.replica
        if replica is None or replica.role == "leader":  # a standby's brokers wait
            yield self._gauge("nexo_up", "Whether the broker answers.", lambda w: float(w.up))
        yield from self._totals()
        yield from self._processes()
        yield from self._times()
        yield self._roundtrips()
        yield self._alerts()

    # -- brokers ------------------------------------------------------------------------

    def _gauge(self, name: str, text: str, read: Callable[[Any], float | None]) -> Metric:
        family = GaugeMetricFamily(name, text, labels=["broker"])
        for watch in self._sampler.brokers.values():
            value = read(watch)
            if value is not None:
                family.add_metric([watch.broker.label], value)
        return family

    def _dialects(self) -> Metric:
        family = GaugeMetricFamily(
            "nexo_dialect_connections", "Open connections by protocol.",
            labels=["broker", "dialect"],
        )  # fmt: skip
        for watch in self._sampler.brokers.values():
            for dialect, count in (watch.status.get("dialects") or {}).items():
                if watch.up:
                    family.add_metric([watch.broker.label, dialect], count)
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
        yield self._dialects()
        yield self._gauge(
            "nexo_resident_memory_bytes", "Memory of the process.", status("process", "rss_bytes")
        )
        yield self._gauge("nexo_disk_free_bytes", "Free disk.", status("disk", "free_bytes"))
        yield self._gauge(
            "nexo_disk_full", "Whether writes are refused for want of space.",
            status("disk", "full"),
        )  # fmt: skip
        yield self._gauge(
            "nexo_disk_failed", "Whether a sync has failed, so that nothing is written any more.",
            lambda watch: float(bool(_at(watch.status, ("disk", "failed")))) if watch.up else None,
        )  # fmt: skip
        yield self._gauge(
            "nexo_slow_readers", "Connections that do not read their replies.",
            status("limits", "slow_readers"),
        )  # fmt: skip
        yield self._counter(
            "nexo_connections_turned_away", "Connections refused, as there were too many.",
            status("limits", "turned_away"),
        )  # fmt: skip
        yield self._gauge(
            "nexo_disk_sync_max_seconds", "Longest sync since the start.",
            lambda watch: _thousandth(_at(watch.status, ("disk", "sync_max_ms"))),
        )  # fmt: skip
        yield self._counter("nexo_disk_syncs", "Syncs to disk.", status("disk", "syncs"))
        yield self._counter(
            "nexo_process_cpu_seconds", "Processor time.", status("process", "cpu_s")
        )

        if self._sampler.replica is not None:
            yield from self._replica_state(self._sampler.replica)
        if any(watch.status.get("replica") for watch in self._sampler.brokers.values()):
            yield from self._replicas(status)

    def _replica_state(self, state: ReplicaState) -> Iterator[Metric]:
        yield GaugeMetricFamily(
            "nexo_replica_leader", "Whether this server leads.", float(state.role == "leader")
        )
        yield GaugeMetricFamily(
            "nexo_replica_standbys", "Standbys that this leader knows of.", len(state.standbys)
        )
        yield GaugeMetricFamily(
            "nexo_replica_behind_seconds",
            "How far a standby is behind, or how long a leader's oldest write waits for a put.",
            state.lag_ms / 1000,
        )
        yield GaugeMetricFamily(
            "nexo_replica_takeover_seconds", "How long this server's last takeover took.",
            state.takeover_ms / 1000,
        )  # fmt: skip

    def _replicas(self, status: Callable[..., Callable[[Any], float | None]]) -> Iterator[Metric]:
        """Of servers that replicate."""
        yield self._gauge(
            "nexo_replica_lag_seconds", "For how long a write has waited for the object store.",
            lambda watch: _thousandth(_at(watch.status, ("replica", "lag_ms"))),
        )  # fmt: skip
        yield self._gauge(
            "nexo_replica_lag_bytes", "What waits for the object store.",
            status("replica", "lag_bytes"),
        )  # fmt: skip
        yield self._counter(
            "nexo_replica_puts", "Log objects put into the store.", status("replica", "puts")
        )
        yield self._counter(
            "nexo_replica_put_failures", "Puts that failed and were tried again.",
            status("replica", "put_failures"),
        )  # fmt: skip

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
            buckets = cumulative(histogram.bounds, histogram.counts)
            family.add_metric([broker.label], buckets, histogram.total)
        return family

    def _times(self) -> Iterator[Metric]:
        requests = HistogramMetricFamily(
            "nexo_request_seconds",
            "From a request's arrival until its reply is written; long polls with their wait.",
            labels=["broker", "op"],
        )
        syncs = HistogramMetricFamily("nexo_disk_sync_seconds", "Syncs to disk.", labels=["broker"])
        for watch in self._sampler.brokers.values():
            label, status = watch.broker.label, watch.status if watch.up else {}
            for op, row in status.get("requests", {}).items():
                requests.add_metric([label, op], cumulative(BOUNDS_S, row["buckets"]), row["sum_s"])
            row = status.get("disk", {}).get("sync_times")
            if row is not None:
                syncs.add_metric([label], cumulative(BOUNDS_S, row["buckets"]), row["sum_s"])
        yield from (requests, syncs)

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
        self._registry.register(NamedReadings(sampler))
        self._registry.register(PipelineReadings(sampler))
        self.requests = Histogram(
            "nexo_http_request_duration_seconds",
            "HTTP requests to the dashboard and its API.",
            ["method", "status"],
            registry=self._registry,
        )

    def text(self) -> bytes:
        """All metrics."""
        return generate_latest(self._registry)


def cumulative(bounds: Sequence[float], counts: Sequence[int]) -> list[tuple[str, float]]:
    """Buckets as Prometheus wants them: each with all that is below its bound."""
    names = (*map(str, bounds), "+Inf")
    return [(name, float(total)) for name, total in zip(names, accumulate(counts), strict=True)]


def _at(status: dict[str, Any], path: tuple[str, ...]) -> float | None:
    for key in path[:-1]:
        status = status.get(key) or {}
    return status.get(path[-1])


def _thousandth(value: float | None) -> float | None:
    return None if value is None else value / 1000
