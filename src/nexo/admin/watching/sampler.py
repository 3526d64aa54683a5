"""Asks every broker for its status once a second and keeps the last hour."""

from __future__ import annotations

import asyncio
import logging
import time
from bisect import bisect_left
from collections.abc import Awaitable
from functools import partial
from pathlib import Path
from typing import TypeVar

import msgspec

from nexo.admin.watching.alerts import Alert, gathered, of_broker, of_debts, of_pipeline, of_replica
from nexo.admin.watching.history import TopicRates
from nexo.admin.watching.survey import BrokerSurvey
from nexo.admin.watching.watch import BrokerWatch
from nexo.client._async.client import AsyncClient
from nexo.client._async.requests import status as ask_status
from nexo.config import Settings
from nexo.errors import NexoError
from nexo.lake.progress import PipelineProgress, read_progress
from nexo.model import Broker
from nexo.replication.state import FILE, ReplicaState

log = logging.getLogger("nexo.admin")

T = TypeVar("T")

PERIOD_S = 1.0
PATIENCE_S = 2.0
PIPELINES_EVERY = 3
"""Samples from one look at the pipelines' files to the next."""
ROUNDTRIP_BUCKETS_S = (0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1.0)


class BucketCounts:
    """Counts by upper bound, and the sum."""

    def __init__(self) -> None:
        self.bounds = ROUNDTRIP_BUCKETS_S
        self.counts = [0] * (len(self.bounds) + 1)
        self.total = 0.0

    def add(self, value: float) -> None:
        """One measurement."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value


class Sampler:
    """Watches the brokers of one server while its task runs."""

    def __init__(
        self, client: AsyncClient, settings: Settings, run_folder: Path | None = None
    ) -> None:
        """``run_folder`` is where a supervisor writes the state of replication."""
        self._client = client
        self._run_folder = run_folder if settings.replicate else None
        self.replica: ReplicaState | None = None
        """This server's part, if it replicates."""
        self._reserve = settings.disk_reserve_bytes
        self._lake_folder = settings.lake_folder
        self.pipelines: list[PipelineProgress] = []
        self.brokers = {broker: BrokerWatch(broker) for broker in Broker}
        self.survey = BrokerSurvey(client)
        self.topics = TopicRates()
        self.alerts: list[Alert] = []
        """Alerts, the worst first; many of a kind are one."""
        self.alert_counts = {"critical": 0, "warning": 0}
        self.roundtrips = {broker: BucketCounts() for broker in Broker}
        self.sampled_ms = int(time.time() * 1000)
        self._next = asyncio.Event()
        self._turn = 0

    async def run(self) -> None:
        """Sample until cancelled."""
        loop = asyncio.get_running_loop()
        due_s = loop.time()
        while True:
            try:
                await self.sample()
            except Exception:
                log.exception("a sample failed")  # this loop owns the task: continue
            due_s = max(due_s + PERIOD_S, loop.time() + PERIOD_S / 2)
            await asyncio.sleep(due_s - loop.time())

    async def sample(self) -> None:
        """One second's readings."""
        await asyncio.gather(*(self._ask(broker) for broker in Broker))
        if self._turn % PIPELINES_EVERY == 0:
            self.pipelines = await asyncio.to_thread(read_progress, self._lake_folder)
        self._turn += 1
        if self._run_folder is not None:
            self.replica = _read_replica(self._run_folder)
        self._judge()
        self.sampled_ms = int(time.time() * 1000)
        fresh, self._next = self._next, asyncio.Event()
        fresh.set()

    @property
    def all_up(self) -> bool:
        """Whether every broker answered the last time."""
        return all(watch.up for watch in self.brokers.values())

    async def next_sample(self) -> None:
        """Wait for the next second's readings."""
        await self._next.wait()

    async def _ask(self, broker: Broker) -> None:
        call = partial(self._client.link(broker).call, timeout_s=PATIENCE_S)
        watch, began_s = self.brokers[broker], time.perf_counter()
        try:
            status = await ask_status(call, broker)
        except NexoError as error:
            watch.silent(error.message, int(time.time() * 1000))
            return
        roundtrip_s = time.perf_counter() - began_s
        self.roundtrips[broker].add(roundtrip_s)
        now_ms = int(time.time() * 1000)
        if broker is Broker.QUEUE:
            await self._quietly(self.survey.see_queues())
        elif broker is Broker.STREAM:
            status |= await self._quietly(self.survey.see_streams()) or {}
        watch.answered(status, roundtrip_s, now_ms)

    async def _quietly(self, looking: Awaitable[T]) -> T | None:
        """The result, or None if the broker went away: the next sample will show that."""
        try:
            return await looking
        except NexoError:
            return None

    def _judge(self) -> None:
        """Everything that is wrong now, the worst first."""
        replica = self.replica
        serves = replica is None or replica.role == "leader"  # a standby's brokers wait
        brokers = self.brokers.values() if serves else ()
        now_ms = int(time.time() * 1000)
        found = [alert for watch in brokers for alert in of_broker(watch, self._reserve, now_ms)]
        found += of_replica(replica) if replica is not None else ()
        found += [alert for one in self.pipelines for alert in of_pipeline(one, now_ms)]
        found += [alert for one in self.pipelines for alert in of_debts(one, now_ms)]
        self.alerts = gathered([*found, *self.survey.alerts()])
        self.alert_counts = {
            level: sum(alert.count for alert in self.alerts if alert.level == level)
            for level in ("critical", "warning")
        }


def _read_replica(folder: Path) -> ReplicaState | None:
    """This server's part in replication, by its supervisor; None if it does not replicate."""
    try:
        return msgspec.json.decode((folder / FILE).read_bytes(), type=ReplicaState)
    except (OSError, msgspec.MsgspecError):
        return None
