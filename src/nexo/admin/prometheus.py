"""``/metrics``: the newest readings in Prometheus' text format."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from operator import attrgetter
from typing import Any

from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from nexo.admin.named_metrics import Counter, Gauge, MetricRow, NamedReadings, ReadMetric, families
from nexo.admin.watching.sampler import Sampler
from nexo.admin.watching.watch import BrokerWatch
from nexo.model import Broker
from nexo.model.histogram import BOUNDS_S

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_TOTALS: dict[Broker, tuple[tuple[type[Counter] | type[Gauge], str, str, str], ...]] = {
    Broker.STORE: (
        (Counter, "commands", "nexo_store_commands", "Commands carried out."),
        (Counter, "hits", "nexo_store_hits", "Reads that found their key."),
        (Counter, "misses", "nexo_store_misses", "Reads that found nothing."),
        (Counter, "expired", "nexo_store_expired_keys", "Keys whose time was over."),
        (Counter, "evicted", "nexo_store_evicted_keys", "Keys given up for the memory budget."),
        (Gauge, "keys", "nexo_store_keys", "Keys held."),
        (Gauge, "keys_with_ttl", "nexo_store_keys_with_ttl", "Keys that will expire."),
        (Gauge, "used_bytes", "nexo_store_used_bytes", "Memory counted against the budget."),
        (Gauge, "max_bytes", "nexo_store_max_bytes", "The memory budget; 0 for none."),
    ),
    Broker.PUBSUB: (
        (Counter, "published", "nexo_pubsub_published", "Messages published."),
        (Counter, "delivered", "nexo_pubsub_delivered", "Copies delivered to subscribers."),
        (Counter, "dropped", "nexo_pubsub_dropped", "Copies dropped for slow subscribers."),
        (Gauge, "subscribers", "nexo_pubsub_subscribers", "Clients with subscriptions."),
        (Gauge, "subscriptions", "nexo_pubsub_subscriptions", "Subscriptions."),
        (Gauge, "retained", "nexo_pubsub_retained", "Topics with a retained message."),
        (Gauge, "retained_bytes", "nexo_pubsub_retained_bytes", "Size of all retained messages."),
    ),
    Broker.QUEUE: (
        (Counter, "pushed_total", "nexo_queues_pushed", "Jobs pushed, over all queues."),
        (Counter, "finished_total", "nexo_queues_finished", "Jobs acknowledged, over all queues."),
        (Counter, "failed_total", "nexo_queues_failed",
         "Deliveries that failed and are tried again, over all queues."),
        (Counter, "died_total", "nexo_queues_died",
         "Jobs that became dead letters, over all queues."),
        (Gauge, "queues", "nexo_queue_queues", "Queues."),
        (Gauge, "waiting", "nexo_queues_waiting_jobs", "Jobs ready to run, over all queues."),
        (Gauge, "scheduled", "nexo_queues_scheduled_jobs", "Jobs delayed, over all queues."),
        (Gauge, "working", "nexo_queues_working_jobs", "Jobs leased, over all queues."),
        (Gauge, "dead", "nexo_queues_dead_jobs", "Dead letters, over all queues."),
    ),
    Broker.STREAM: (
        (Counter, "published", "nexo_stream_published", "Records taken in."),
        (Counter, "finished", "nexo_groups_finished", "Records finished, over all groups."),
        (Gauge, "streams", "nexo_stream_streams", "Streams."),
        (Gauge, "groups", "nexo_stream_groups", "Groups of all streams."),
        (Gauge, "lag", "nexo_groups_lag_records", "Records not finished, over all groups."),
        (Gauge, "in_flight", "nexo_groups_pending_records", "Records in work, over all groups."),
        (Gauge, "parked", "nexo_groups_parked_records", "Records set aside, over all groups."),
        (Gauge, "transactions", "nexo_stream_open_transactions", "Transactions not decided yet."),
        (Gauge, "unsynced_bytes", "nexo_stream_unsynced_bytes", "Published bytes not yet synced."),
    ),
}  # fmt: skip
"""Numbers in a broker's status."""


def _now(*path: str) -> ReadMetric:
    """A number in the status of a broker that answers."""
    return lambda watch: _at(watch.status if watch.up else {}, path)


def _seconds(*path: str) -> ReadMetric:
    """Milliseconds in the last status of a broker."""

    def read(watch: BrokerWatch) -> float | None:
        found = _at(watch.status, path)
        return None if found is None else found / 1000

    return read


def _at(status: dict[str, Any], path: tuple[str, ...]) -> float | None:
    for key in path[:-1]:
        status = status.get(key) or {}
    return status.get(path[-1])


_UP: MetricRow = (Gauge, "nexo_up", "Whether the broker answers.", lambda watch: float(watch.up))
_PROCESSES: tuple[MetricRow, ...] = (
    (Gauge, "nexo_connections", "Open connections.", _now("connections")),
    (Gauge, "nexo_resident_memory_bytes", "Memory of the process.", _now("process", "rss_bytes")),
    (Gauge, "nexo_disk_free_bytes", "Free disk.", _now("disk", "free_bytes")),
    (Gauge, "nexo_disk_full", "Whether writes are refused for want of space.",
     _now("disk", "full")),
    (Gauge, "nexo_disk_failed", "Whether a sync has failed, so that nothing is written any more.",
     lambda watch: float(bool(_at(watch.status, ("disk", "failed")))) if watch.up else None),
    (Gauge, "nexo_slow_readers", "Connections that do not read their replies.",
     _now("limits", "slow_readers")),
    (Counter, "nexo_connections_turned_away", "Connections refused, as there were too many.",
     _now("limits", "turned_away")),
    (Gauge, "nexo_disk_sync_max_seconds", "Longest sync since the start.",
     _seconds("disk", "sync_max_ms")),
    (Counter, "nexo_disk_syncs", "Syncs to disk.", _now("disk", "syncs")),
    (Counter, "nexo_process_cpu_seconds", "Processor time.", _now("process", "cpu_s")),
)  # fmt: skip
_REPLICATED: tuple[MetricRow, ...] = (
    (Gauge, "nexo_replica_lag_seconds", "For how long a write has waited for the object store.",
     _seconds("replica", "lag_ms")),
    (Gauge, "nexo_replica_lag_bytes", "What waits for the object store.",
     _now("replica", "lag_bytes")),
    (Counter, "nexo_replica_puts", "Log objects put into the store.", _now("replica", "puts")),
    (Counter, "nexo_replica_put_failures", "Puts that failed and were tried again.",
     _now("replica", "put_failures")),
)  # fmt: skip
_REPLICA: tuple[MetricRow, ...] = (
    (Gauge, "nexo_replica_leader", "Whether this server leads.",
     lambda state: float(state.role == "leader")),
    (Gauge, "nexo_replica_standbys", "Standbys that this leader knows of.",
     lambda state: len(state.standbys)),
    (Gauge, "nexo_replica_behind_seconds",
     "How far a standby is behind, or how long a leader's oldest write waits for a put.",
     lambda state: state.lag_ms / 1000),
    (Gauge, "nexo_replica_takeover_seconds", "How long this server's last takeover took.",
     lambda state: state.takeover_ms / 1000),
)  # fmt: skip


class Readings(Collector):
    """Makes metrics of what the sampler has seen; asks the brokers nothing."""

    def __init__(self, sampler: Sampler) -> None:
        self._sampler = sampler

    def collect(self) -> Iterator[Metric]:
        """Every metric."""
        replica = self._sampler.replica
        if replica is None or replica.role == "leader":  # a standby's brokers wait
            yield from self._brokers([_UP])
        yield from self._totals()
        yield from self._brokers(_PROCESSES)
        yield self._dialects()
        if replica is not None:
            yield from families(_REPLICA, {}, [replica])
        if any(watch.status.get("replica") for watch in self._sampler.brokers.values()):
            yield from self._brokers(_REPLICATED)
        yield from self._times()
        yield self._roundtrips()
        yield self._alerts()

    def _brokers(self, table: Iterable[MetricRow]) -> Iterator[Metric]:
        watches = self._sampler.brokers.values()
        return families(table, {"broker": attrgetter("broker.label")}, watches)

    def _dialects(self) -> Metric:
        family = Gauge(
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
            for kind, key, name, text in _TOTALS[watch.broker]:
                if key in watch.status:
                    yield kind(name, text, watch.status[key])

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
        family = Gauge("nexo_alerts", "Alerts that stand.", labels=["level"])
        for level, count in self._sampler.alert_counts.items():
            family.add_metric([level], count)
        return family


class Metrics:
    """The answer of ``/metrics``."""

    def __init__(self, sampler: Sampler) -> None:
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(Readings(sampler))
        self._registry.register(NamedReadings(sampler))
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
