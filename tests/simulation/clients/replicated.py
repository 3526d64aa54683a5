"""Actors for servers that replicate: what is acknowledged as `replicated` outlives a machine."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any, ClassVar

from nexo.errors import NexoError
from tests.simulation.clients.actor import Actor
from tests.simulation.clients.queue import Pusher, Worker
from tests.simulation.clients.store import LockActor, StoreActor
from tests.simulation.clients.stream import Publisher

_JOBS: dict[str, Any] = {"visibility_timeout_ms": 4_000, "max_retries": 1_000}


class ReplicatedPublisher(Publisher):
    """To a stream whose records are in the object store before the reply."""

    think_s = (0.0, 1.0)
    stream_name = "ledger"
    options: ClassVar[dict[str, Any]] = {"partitions": 2, "persistence": "replicated"}


class ReplicatedPusher(Pusher):
    """To a queue whose jobs are."""

    think_s = (0.0, 1.0)
    queue_name = "payments"
    options: ClassVar[dict[str, Any]] = {**_JOBS, "persistence": "replicated"}


class ReplicatedWorker(Worker):
    """Of that queue."""

    think_s = (0.0, 0.8)
    queue_name = "payments"
    options: ClassVar[dict[str, Any]] = ReplicatedPusher.options


class FastPusher(Pusher):
    """To a queue that may lose what a lost machine had just acknowledged."""

    think_s = (0.0, 1.0)
    queue_name = "mails"
    options: ClassVar[dict[str, Any]] = {**_JOBS, "persistence": "file_sync"}


class FastWorker(Worker):
    """Of that queue."""

    think_s = (0.0, 0.8)
    queue_name = "mails"
    options: ClassVar[dict[str, Any]] = FastPusher.options


class Loyal(Actor):
    """Knows one of the servers only: so somebody asks it also when it should not answer."""

    think_s = (0.0, 1.0)

    async def run(self) -> None:
        while not self.system.is_quiet:
            with contextlib.suppress(NexoError):
                await self.begin()
                break
        while not self.system.is_quiet:
            await self.act()
            await asyncio.sleep(self.chance.uniform(*self.think_s))

    async def check(self) -> None:
        """Others do: its server may be the standby."""


class LoyalStoreActor(Loyal, StoreActor):
    """Keys of one server."""


class LoyalLockActor(Loyal, LockActor):
    """Locks of one server."""


class LoyalPublisher(Loyal, ReplicatedPublisher):
    """Replicated records to one server."""
