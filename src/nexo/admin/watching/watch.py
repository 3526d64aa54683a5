"""Keeps the figures of each broker, queue and group, second by second; no I/O."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from nexo.admin.watching.history import Rate, Series
from nexo.admin.watching.request_times import RequestTimes
from nexo.model import Broker
from nexo.model.queue import QueueInfo
from nexo.model.stream import GroupSeen, StreamSeen

RATES: dict[Broker, tuple[str, ...]] = {
    Broker.STORE: ("commands", "hits", "misses", "expired", "evicted"),
    Broker.PUBSUB: ("published", "delivered", "dropped"),
    Broker.QUEUE: ("pushed_total", "finished_total", "failed_total", "died_total"),
    Broker.STREAM: ("published", "finished"),
}
"""Counters in a broker's status, kept as rates per second."""

LEVELS: dict[Broker, tuple[str, ...]] = {
    Broker.STORE: ("keys", "used_bytes"),
    Broker.PUBSUB: ("subscriptions", "retained"),
    Broker.QUEUE: ("queues", "waiting", "scheduled", "working", "dead"),
    Broker.STREAM: ("streams", "groups", "lag", "in_flight", "parked", "unsynced_bytes"),
}
"""Numbers in a broker's status, kept as they are."""

EVERY_BROKER = (
    "connections", "roundtrip_ms", "request_p50_ms", "request_p99_ms", "sync_ms", "rss_bytes",
    "cpu_percent",
)  # fmt: skip
MINUTE_S = 60


class BrokerWatch:
    """One broker: its newest status and the last hour."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.status: dict[str, Any] = {}
        self.error: str | None = "not asked yet"
        self.changed_ms = 0
        """When it last went up or down."""
        self.restarted_ms: int | None = None
        """When it was first seen in another process than before."""
        self.series: dict[str, Series] = {
            name: Series() for name in (*RATES[broker], *LEVELS[broker], *EVERY_BROKER)
        }
        self._rates = {name: Rate(self.series[name]) for name in RATES[broker]}
        self._cpu = Rate(Series(2))
        self.requests = RequestTimes()

    @property
    def up(self) -> bool:
        """Whether it answered the last time."""
        return self.error is None

    def answered(self, status: dict[str, Any], roundtrip_s: float, now_ms: int) -> None:
        """Take in a second's answer."""
        if self.error is not None:
            self.error, self.changed_ms = None, now_ms
        if _is_other_process(self.status, status):
            self.restarted_ms = now_ms
        self.status = status
        now_s = now_ms / 1000
        for name, rate in self._rates.items():
            rate.add(status.get(name), now_s)
        for name in LEVELS[self.broker]:
            self.series[name].add(status.get(name))
        self._add_process(status, roundtrip_s, now_s)

    def _add_process(self, status: dict[str, Any], roundtrip_s: float, now_s: float) -> None:
        process, disk = status.get("process", {}), status.get("disk", {})
        self._cpu.add(process.get("cpu_s"), now_s)
        self.requests.seen(status.get("requests", {}))
        p50_ms, p99_ms = self.requests.recent()
        cpu = self._cpu.series.last
        readings = {
            "connections": status.get("connections"),
            "roundtrip_ms": round(roundtrip_s * 1000, 3),
            "request_p50_ms": p50_ms,
            "request_p99_ms": p99_ms,
            "sync_ms": disk.get("sync_ms"),
            "rss_bytes": process.get("rss_bytes"),
            "cpu_percent": None if cpu is None else round(cpu * 100, 1),
        }
        for name, value in readings.items():
            self.series[name].add(value)

    def silent(self, error: str, now_ms: int) -> None:
        """Note a second without an answer."""
        if self.error is None:
            self.changed_ms = now_ms
        self.error = error
        for series in self.series.values():
            series.add(None)


def _is_other_process(before: dict[str, Any], now: dict[str, Any]) -> bool:
    pids = [status.get("process", {}).get("pid") for status in (before, now)]
    return None not in pids and pids[0] != pids[1]


def _minute() -> Rate:
    return Rate(Series(MINUTE_S))


@dataclass(slots=True)
class _Turns:
    """Each look covers the seconds since the last one, because many things take turns."""

    _at_s: float | None = field(default=None, init=False)

    def _passed(self, now_s: float) -> int:
        """Whole seconds since the last look, at least one."""
        before_s, self._at_s = self._at_s, now_s
        return 1 if before_s is None else max(1, round(now_s - before_s))


@dataclass(slots=True)
class QueueWatch(_Turns):
    """One queue."""

    info: QueueInfo
    pushed: Rate = field(default_factory=_minute)
    finished: Rate = field(default_factory=_minute)

    def seen(self, info: QueueInfo, now_s: float) -> None:
        """Take in its counts."""
        self.info = info
        ended, seconds = info.finished_total + info.failed_total, self._passed(now_s)
        self.pushed.add(info.pushed_total, now_s, seconds)
        self.finished.add(ended + info.died_total, now_s, seconds)


@dataclass(slots=True)
class GroupWatch(_Turns):
    """One group of a stream, shared or ordered."""

    info: GroupSeen
    lag: Series = field(default_factory=lambda: Series(MINUTE_S))
    finished: Rate = field(default_factory=_minute)

    def seen(self, info: GroupSeen, now_s: float) -> None:
        """Take in its position."""
        self.info = info
        seconds = self._passed(now_s)
        self.lag.add(info.lag, seconds)
        self.finished.add(info.finished, now_s, seconds)


@dataclass(slots=True)
class StreamWatch(_Turns):
    """One stream."""

    info: StreamSeen
    published: Rate = field(default_factory=_minute)

    def seen(self, info: StreamSeen, now_s: float) -> None:
        """Take in its counts."""
        self.info = info
        self.published.add(info.published, now_s, self._passed(now_s))
