"""What the host asks of a broker's service, and what a service may ask of the host.

A service runs the use cases of one broker: it calls a pure engine with the time, writes the
engine's records to its log, and answers when the promised durability is reached. Everything
runs on one event loop; nothing here blocks.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from nexo.config import Settings
from nexo.errors import NexoError
from nexo.model import Broker, Clock, Persistence
from nexo.services.connection import Connection
from nexo.storage.ports import Files


class Runtime(Protocol):
    """What a host gives to a service."""

    settings: Settings
    clock: Clock
    files: Files
    """File access, paths absolute. What is written through it is synced by `committed`."""
    folder: Path
    """Where this service keeps its data."""

    unique: Persistence
    """The durability that a number which must never repeat needs before a client sees it."""
    epoch: int
    """How many times another process has begun to lead before this one; 0 without replication."""
    numbers_after_ms: int
    """Until when, on its own clock, another leader may have issued numbers made from the time."""

    def soon(self, callback: Callable[[], None]) -> None:
        """Call back once at the end of this turn of the loop, after all its requests."""

    def wake_at(self, due_ms: int) -> None:
        """Have ``Service.tick`` called at ``due_ms`` or a little later; the earliest counts."""

    def committed(self, mode: Persistence, callback: Callable[[NexoError | None], None]) -> None:
        """Call back once everything this service has appended is as durable as ``mode`` says.

        ``FILE_ASYNC`` calls back at once. The argument is the error if a sync failed: then
        nothing more may be acknowledged.
        """

    def sync_soon(self) -> None:
        """Sync now instead of at the end of the ``FILE_ASYNC`` window: enough was written."""

    def check_writable(self) -> None:
        """Raise `DiskFull`, `ReadOnly` or what `check_leads` raises if writes must be refused."""

    def check_leads(self) -> None:
        """Raise `Unavailable` if another server may lead: then nothing may be acknowledged."""

    def progress(self) -> None:
        """Report that a long `Service.close` is making progress, so that it is not killed."""


class Service(Protocol):
    """One broker as the host runs it."""

    broker: Broker

    def open(self) -> None:
        """Recover from disk. Called once, before the first request."""

    def tick(self, now_ms: int) -> None:
        """Do what is due, and ask for the next wake-up."""

    def cancel(self, connection: Connection, ticket: int) -> None:
        """Answer a waiting request (a long poll) now, with nothing; an unknown one is fine."""

    def connection_congested(self, connection: Connection) -> None:
        """The connection's write buffer went over its limit."""

    def connection_drained(self, connection: Connection) -> None:
        """The connection's write buffer is below its low mark again."""

    def connection_closed(self, connection: Connection) -> None:
        """The connection ended: release what it held."""

    def status(self) -> dict[str, Any]:
        """A small summary for the dashboard, metrics and ``nexo top``; cheap."""

    def wind_down(self) -> None:
        """The server is about to stop: lend nothing more, and end the requests that wait."""

    def lent(self) -> int:
        """How many jobs, records and transactions clients hold and have yet to finish."""

    def close(self) -> None:
        """Write what must survive a graceful stop; nothing is called afterwards."""
