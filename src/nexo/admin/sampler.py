"""Asks every broker for its status once a second and keeps the last hour."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from itertools import islice
from typing import Any

from nexo.admin import alerts
from nexo.admin.watch import BrokerWatch, GroupWatch, QueueWatch, StreamWatch
from nexo.client._async.client import AsyncClient
from nexo.client.queue_views import QueueInfo
from nexo.errors import NexoError
from nexo.model import Broker
from nexo.protocol.ops import Op
from nexo.protocol.values import decode_value

log = logging.getLogger("nexo.admin")

PERIOD_S = 1.0
PATIENCE_S = 2.0
GROUPS_PER_TURN = 40
"""Streams whose groups are looked at in one turn; with more, they take turns."""
ROUNDTRIP_BUCKETS_S = (0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1.0)


class Histogram:
    """Counts by upper bound, and the sum."""

    def __init__(self, bounds: tuple[float, ...] = ROUNDTRIP_BUCKETS_S) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def add(self, value: float) -> None:
        """One measurement."""
        at = next((i for i, bound in enumerate(self.bounds) if value <= bound), len(self.bounds))
        self.counts[at] += 1
        self.total += value


class Sampler:
    """Watches the brokers of one server while its task runs."""

    def __init__(self, client: AsyncClient, disk_reserve_bytes: int) -> None:
        self._client = client
        self._reserve = disk_reserve_bytes
        self.brokers = {broker: BrokerWatch(broker) for broker in Broker}
        self.queues: dict[str, QueueWatch] = {}
        self.streams: dict[str, StreamWatch] = {}
        self.groups: dict[tuple[str, str], GroupWatch] = {}
        self.roundtrips = {broker: Histogram() for broker in Broker}
        self.started_ms = self.sampled_ms = int(time.time() * 1000)
        self._turn = 0
        self._next = asyncio.Event()

    async def run(self) -> None:
        """Sample until cancelled."""
        loop = asyncio.get_running_loop()
        due_s = loop.time()
        while True:
            try:
                await self.sample()
            except Exception:
                log.exception("a sample failed")  # this loop owns the task: go on
            due_s = max(due_s + PERIOD_S, loop.time() + PERIOD_S / 2)
            await asyncio.sleep(due_s - loop.time())

    async def sample(self) -> None:
        """One second's readings."""
        await asyncio.gather(*(self._ask(broker) for broker in Broker))
        self.sampled_ms = int(time.time() * 1000)
        fresh, self._next = self._next, asyncio.Event()
        fresh.set()

    async def next_sample(self) -> None:
        """Wait for the next second's readings."""
        await self._next.wait()

    async def _ask(self, broker: Broker) -> None:
        watch, began_s = self.brokers[broker], time.perf_counter()
        try:
            status = await self._status(broker)
        except NexoError as error:
            watch.silent(error.message, int(time.time() * 1000))
            return
        roundtrip_s = time.perf_counter() - began_s
        self.roundtrips[broker].add(roundtrip_s)
        now_ms = int(time.time() * 1000)
        if broker is Broker.QUEUE:
            self._see_queues(status.get("by_queue", []), now_ms / 1000)
        elif broker is Broker.STREAM:
            await self._see_streams(status, now_ms / 1000)
        watch.answered(status, roundtrip_s, now_ms)

    async def _status(self, broker: Broker) -> dict[str, Any]:
        link = self._client.link(broker)
        reply = await link.call(Op.STATUS, bytes((broker,)), timeout_s=PATIENCE_S)
        return decode_value(reply or b"\x02{}", dict[str, Any])

    # -- queues, streams and groups ---------------------------------------------------

    def _see_queues(self, rows: list[dict[str, Any]], now_s: float) -> None:
        infos = [QueueInfo(**row) for row in rows]
        self.queues = {info.name: self._queue(info) for info in infos}
        for info in infos:
            self.queues[info.name].seen(info, now_s)

    def _queue(self, info: QueueInfo) -> QueueWatch:
        known = self.queues.get(info.name)
        same = known is not None and known.info.created_ms == info.created_ms
        return known if known is not None and same else QueueWatch(info)

    async def _see_streams(self, status: dict[str, Any], now_s: float) -> None:
        items: list[dict[str, Any]] = status.get("items", [])
        self.streams = {
            item["name"]: self.streams.get(item["name"]) or StreamWatch(item) for item in items
        }
        for item in items:
            self.streams[item["name"]].seen(item, now_s)
        await self._see_groups([item["name"] for item in items if item["groups"]], now_s)
        groups = self.groups.values()
        status |= {
            "lag": sum(group.info.lag for group in groups),
            "in_flight": sum(group.in_flight for group in groups),
            "parked": sum(group.parked for group in groups),
            "finished": sum(group.finished_total for group in groups),
        }

    async def _see_groups(self, streams: list[str], now_s: float) -> None:
        known = set(streams)
        self.groups = {key: group for key, group in self.groups.items() if key[0] in known}
        for name in self._some(streams):
            with contextlib.suppress(NexoError):  # deleted meanwhile
                infos = await self._client.stream(name).groups()
                for key in [key for key in self.groups if key[0] == name]:
                    if key[1] not in {info.name for info in infos}:
                        del self.groups[key]
                for info in infos:
                    watch = self.groups.setdefault((name, info.name), GroupWatch(name, info))
                    watch.seen(info, now_s)

    def _some(self, names: list[str]) -> list[str]:
        if len(names) <= GROUPS_PER_TURN:
            return names
        self._turn = (self._turn + GROUPS_PER_TURN) % len(names)
        return list(islice((names + names)[self._turn :], GROUPS_PER_TURN))

    def alerts(self) -> list[alerts.Alert]:
        """What needs attention now."""
        return alerts.alerts(
            self.brokers.values(), self.queues.values(), self.groups.values(), self._reserve
        )
