"""What the host asks of a broker's service, and what a service may ask of the host.

A service is the thin ring around one pure engine: it decodes requests, calls the
engine with the time, writes the engine's records to its log, and replies when the
promised durability is reached. Everything here runs on one event loop; handlers are
plain functions and never wait.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from nexo.config import Settings
from nexo.errors import NexoError
from nexo.model import Broker, Clock, Persistence
from nexo.protocol.frames import Buffer
from nexo.services.connection import Connection
from nexo.storage.ports import Files


class Peer(Connection, Protocol):
    """One client connection as a service sees it.

    A reply may be sent at any later time; on a closed connection it is dropped.
    """

    said_hello: bool
    """Speaks our additions (coded errors, timestamped pushes)."""

    def ok(self, request_id: int) -> None:
        """Reply OK."""

    def null(self, request_id: int) -> None:
        """Reply NULL."""

    def data(self, request_id: int, *parts: Buffer) -> None:
        """Reply DATA; the parts follow one another on the wire and must not change later."""

    def fail(self, request_id: int, error: NexoError) -> None:
        """Reply with an error."""

    def push(self, frames: Buffer) -> None:
        """Send whole frames that answer no request."""


Handler: TypeAlias = Callable[[Peer, int, memoryview], None]
"""``handler(peer, request_id, payload)``. It replies through ``peer``, now or later, or raises
a `NexoError`, which is sent as the reply. ``payload`` is only valid during the call."""

Answer: TypeAlias = Callable[[Peer, memoryview], bytes | None]
"""``answer(peer, payload)``, for requests that never wait: what it returns is the reply, NULL for
None and OK for nothing but ``b""``. Cheaper than a `Handler`, which see for the rest."""


def handler_of(answer: Answer) -> Handler:
    """The same request for those who call handlers."""

    def handle(peer: Peer, request_id: int, payload: memoryview) -> None:
        reply = answer(peer, payload)
        if reply is None:
            peer.null(request_id)
        elif reply:
            peer.data(request_id, reply)
        else:
            peer.ok(request_id)

    return handle


class Runtime(Protocol):
    """What a host gives to a service."""

    settings: Settings
    clock: Clock
    files: Files
    """File access, paths absolute. What is written through it is synced by `committed`."""
    folder: Path
    """Where this service keeps its data."""

    def soon(self, callback: Callable[[], None]) -> None:
        """Call back once at the end of this turn of the loop, after all its requests."""

    def wake_at(self, due_ms: int) -> None:
        """Have ``Service.tick`` called at ``due_ms`` or a little later (earliest wish wins)."""

    def committed(self, mode: Persistence, callback: Callable[[NexoError | None], None]) -> None:
        """Call back once everything appended so far by this service has the safety of ``mode``.

        ``FILE_ASYNC`` calls back at once. The argument is the error if a sync failed: then
        nothing more may be acknowledged.
        """

    def sync_soon(self) -> None:
        """Sync now instead of at the end of the ``FILE_ASYNC`` window: enough was written."""

    def check_writable(self) -> None:
        """Raise `DiskFull` or `ReadOnly` if writes must be refused now."""

    def progress(self) -> None:
        """A long `Service.close` goes on: who waits for the stop goes on waiting."""


class Service(Protocol):
    """One broker as the host runs it."""

    broker: Broker

    def open(self) -> None:
        """Recover from disk. Called once, before the first request."""

    def tick(self, now_ms: int) -> None:
        """Do what is due, and ask for the next wake-up."""

    def cancel(self, peer: Connection, request_id: int) -> None:
        """Answer a waiting request (a long poll) now, with nothing; an unknown one is fine."""

    def peer_congested(self, peer: Connection) -> None:
        """The peer's write buffer went over its limit."""

    def peer_drained(self, peer: Connection) -> None:
        """The peer's write buffer is below its low mark again."""

    def peer_closed(self, peer: Connection) -> None:
        """The connection ended: release what it held."""

    def status(self) -> dict[str, Any]:
        """A small summary for the dashboard, metrics and ``nexo top``; cheap."""

    def close(self) -> None:
        """Write what must survive a graceful stop; nothing is called afterwards."""
