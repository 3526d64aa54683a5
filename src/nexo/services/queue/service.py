"""The queue broker as the host runs it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from nexo.model import Broker, Persistence
from nexo.services.connection import Connection
from nexo.services.queue.admin import QueueAdmin
from nexo.services.queue.work import QueueWork
from nexo.storage.journal import shown


class QueueService(QueueWork, QueueAdmin):
    """Implements `nexo.services.service.Service` around all queues."""

    broker = Broker.QUEUE

    def open(self) -> None:
        self.registry.open(self.now_ms())
        self.slices.add(self._open_others())

    def _open_others(self) -> Iterator[None]:
        yield from self.registry.open_others()
        # What an earlier process wrote to them is synced, so that their journals can note it.
        self.runtime.committed(Persistence.FILE_ASYNC, lambda _: None)

    def tick(self, now_ms: int) -> None:
        self.gathering.flush()  # what was acked before its lease ended is done
        super().tick(now_ms)

    def cancel(self, connection: Connection, ticket: int) -> None:
        self.room.cancel(connection, ticket)

    def connection_congested(self, connection: Connection) -> None:
        """A slow reader gets no more jobs."""
        self.room.pause(connection)

    def connection_drained(self, connection: Connection) -> None:
        self.room.resume(connection)

    def connection_closed(self, connection: Connection) -> None:
        self.gathering.flush()
        self.room.drop(connection)
        self.release(connection.id)

    def status(self) -> dict[str, Any]:
        """Counts of the whole broker; `survey` has the counts of each queue."""
        lost = shown(self.registry.losses())
        return {"queues": len(self.registry), "lost": lost, **self.totals.read()}

    def wind_down(self) -> None:
        self.winding_down = True
        self.room.stop()

    def lent(self) -> int:
        return sum(queue.engine.dispatch.leases.jobs for queue in self.registry)

    def close(self) -> None:
        """Answer waiting requests, and save every queue."""
        self.gathering.flush()
        self.room.stop()
        self.registry.close(self.now_ms())
        self.turn.close()
