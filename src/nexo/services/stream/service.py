"""The stream broker as the host runs it."""

from __future__ import annotations

from typing import Any

from nexo.brokers.stream.registry import OpenStream
from nexo.brokers.stream.status import broker_status
from nexo.errors import NexoError
from nexo.model import Broker
from nexo.services.connection import Connection
from nexo.services.stream.admin import StreamAdmin
from nexo.services.stream.chores import SLICE_MS, Chores, log_failure
from nexo.services.stream.conditions import Conditions
from nexo.services.stream.core import Core
from nexo.services.stream.exposure import SyncReportingRuntime
from nexo.services.stream.groups.kafka_classic import Classic
from nexo.services.stream.groups.kafka_consumers import Consumers
from nexo.services.stream.groups.offsets import GroupOffsets
from nexo.services.stream.groups.ordered import Ordered
from nexo.services.stream.groups.overview import GroupOverview
from nexo.services.stream.groups.parked import ParkedService
from nexo.services.stream.groups.shared import Groups
from nexo.services.stream.groups.taking import GroupTakes
from nexo.services.stream.groups.xgroups import XGroups
from nexo.services.stream.groups.xmessages import XMessages
from nexo.services.stream.keyed import Keyed
from nexo.services.stream.lake import lake_place
from nexo.services.stream.publish import Publishing
from nexo.services.stream.reading import Reading
from nexo.services.stream.transact import Transact
from nexo.storage.journal import shown

SWEEP = 50
"""Streams per tick whose limits are checked, so that no tick takes long."""
_SWEEP_PAUSE_MS = 20


class StreamService:
    """The use cases of the stream broker, and what it does over time."""

    broker = Broker.STREAM

    def __init__(self, runtime: SyncReportingRuntime) -> None:
        self.core = Core(runtime)
        self.taking = GroupTakes(self.core)
        self.groups = Groups(self.core, self.taking)
        self._chores = Chores(self.core)
        self.keyed = Keyed(self.core, self._chores)
        self.admin = StreamAdmin(self.core, self.keyed)
        self.ordered = Ordered(self.core)
        self.offsets = GroupOffsets(self.core, self.ordered)
        self.classic = Classic(self.core, self.ordered)
        self.ordered.is_taken = self.classic.has_members
        self.ordered.read_elsewhere = self.classic.read_by_members
        self.consumers = Consumers(self.core, self.ordered, self.classic)
        self.overview = GroupOverview(self.core, self.ordered, self.classic, self.consumers)
        self.admin.members = self.overview.readers
        self.parked = ParkedService(self.core, self.taking)
        self.publishing = Publishing(self.core)
        conditions = Conditions(self.core, self.keyed)
        self.transact = Transact(self.core, self.publishing, self.offsets, conditions)
        self.xmessages = XMessages(self.core, self.publishing)
        self.xgroups = XGroups(self.core, self.xmessages)
        self.reading = Reading(self.core)
        self.admin.on_deleted = self._deleted
        self.admin.on_partitions_added = self.ordered.stream_grown
        self.core.on_grown = self._compact
        self._sweep: list[OpenStream] = []
        self._sweep_due_ms = 0

    def _deleted(self, stream: OpenStream) -> None:
        self.xmessages.forget(stream)
        self.ordered.stream_deleted()

    def open(self) -> None:
        """Recover from disk."""
        self.core.open()
        self.classic.open()
        self._plan_sweep(self.core.now_ms)

    def tick(self, now_ms: int) -> None:
        """Do all that is due: ends of leases and members, long polls, retention, compaction."""
        self.transact.tick(now_ms)
        self.taking.tick(now_ms)
        self.ordered.tick(now_ms)
        self.classic.tick(now_ms)
        self.core.waits.expire(now_ms)
        self.core.tick(now_ms)
        self._chores.run()
        if now_ms >= self._sweep_due_ms:
            self._sweep_some(now_ms)
        due_ms = self.core.waits.next_due_ms()
        self.core.runtime.wake_at(min(due_ms or self._sweep_due_ms, self._sweep_due_ms))

    def _plan_sweep(self, now_ms: int) -> None:
        self._sweep_due_ms = now_ms + self.core.runtime.settings.retention_check_ms
        self.core.runtime.wake_at(self._sweep_due_ms)

    def _sweep_some(self, now_ms: int) -> None:
        """Check the limits of a few streams, so that each interval covers all of them."""
        if not self._sweep:
            self._sweep = list(self.core.engine.streams)
        for _ in range(min(SWEEP, len(self._sweep))):
            stream = self._sweep.pop()
            if self.core.engine.streams.numbered(stream.id) is stream:
                self._clean(stream)
            if self.core.now_ms >= now_ms + SLICE_MS:
                break
        if self._sweep:
            self._sweep_due_ms = now_ms + _SWEEP_PAUSE_MS
        else:
            self._plan_sweep(now_ms)

    def _clean(self, stream: OpenStream) -> None:
        """Apply a stream's limits; unreadable files must not stop the others."""
        for partition in stream.partitions():
            partition.forget_replayed()
        try:
            self.admin.apply_limits(stream)
        except NexoError as error:
            log_failure(error)
        self._compact(stream)

    def _compact(self, stream: OpenStream) -> None:
        """Compact a stream that has grown, if it is due."""
        try:
            self.core.check_there(stream)
            self.keyed.compact_if_due(stream)
        except NexoError as error:
            log_failure(error)

    def cancel(self, connection: Connection, ticket: int) -> None:
        self.core.waits.cancel(connection, ticket)

    def connection_congested(self, connection: Connection) -> None:
        """A slow reader gets no more records."""
        self.core.waits.pause(connection)

    def connection_drained(self, connection: Connection) -> None:
        """Deliver records to it again."""
        self.core.waits.resume(connection)

    def connection_closed(self, connection: Connection) -> None:
        """Release what the connection held: transactions, partitions, records."""
        self.core.waits.drop(connection)
        self.transact.connection_closed(connection)
        self.ordered.connection_closed(connection)
        self.groups.connection_closed(connection)

    def status(self) -> dict[str, Any]:
        return broker_status(self.core.engine) | {
            "waiting": len(self.core.waits),
            "unsynced_bytes": self.core.pressure.waiting_bytes,
            "lost": shown(self.core.losses),
            "lake": lake_place(self.core.runtime.settings),
        }

    def wind_down(self) -> None:
        self.core.winding_down = True
        self.core.waits.stop()

    def lent(self) -> int:
        engine = self.core.engine
        groups = (group for stream in engine.streams for group in stream.groups.values())
        return len(engine.transactions) + sum(group.lent for group in groups)

    def close(self) -> None:
        self.core.waits.stop()
        self.core.close()
