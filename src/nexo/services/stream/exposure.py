"""How durable an append must be before its offset is acknowledged (SPEC E2, I7)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from nexo.brokers.stream.exposed_offsets import Pressure
from nexo.brokers.stream.partition import Partition
from nexo.brokers.stream.publishing import Placed
from nexo.brokers.stream.registry import OpenStream
from nexo.errors import NexoError, OutcomeUnknown, Unavailable
from nexo.model import Persistence
from nexo.services import service
from nexo.services.connection import Done
from nexo.services.turn import Safe


def stored_here(stream: OpenStream, mode: Persistence, done: Safe) -> Safe:
    """What to call back once a record has a durability that `ExposureControl.mode` has raised.

    Who did not ask for `replicated` takes `Unavailable` for "not stored", and publishes again.
    """
    if mode is not Persistence.REPLICATED or mode is stream.options.persistence:
        return done

    def answered(error: NexoError | None) -> None:
        if isinstance(error, Unavailable):
            error = OutcomeUnknown(f"it may be stored: {error.message}")
        done(error)

    return answered


class SyncReportingRuntime(service.Runtime, Protocol):
    """A host that reports its syncs."""

    def when_synced(self, callback: Done[None]) -> None:
        """Call back after the next sync, which covers everything appended so far."""

    def when_unique(self, callback: Done[None]) -> None:
        """Like `when_synced`, with the durability that `Runtime.unique` names."""


class ExposureControl:
    """Decides how durable records must be before their offsets are exposed.

    Extends the grants of `nexo.brokers.stream.exposed_offsets` whenever a sync happens, and counts
    the bytes written and not synced.
    """

    def __init__(self, runtime: SyncReportingRuntime, pressure: Pressure) -> None:
        self._runtime = runtime
        self._pressure = pressure
        self._unwatched_bytes = 0
        self._watches = 0

    def mode(self, stream: OpenStream, placed: Iterable[Placed]) -> Persistence:
        """The stream's own durability, or more where producers get too far ahead of the disk."""
        mode, unique = stream.options.persistence, self._runtime.unique
        if mode is unique or mode is Persistence.REPLICATED:
            return mode
        is_replicated = unique is Persistence.REPLICATED
        if self._pressure.slowing:
            mode = Persistence.FILE_SYNC
        for place in placed:
            partition, end = stream.partition(place.partition), place.offset + place.count
            grant = partition.grant
            # A partition that is lost before it was shipped would begin at 0 again.
            is_unsure = is_replicated and not (partition.opened_at or grant.shipped)
            if is_unsure or end > grant.renew_at:
                self._renew(partition)
                if is_unsure or end > grant.limit:
                    mode = unique
        return mode

    def _renew(self, partition: Partition) -> None:
        grant, end = partition.grant, partition.next_offset
        if grant.renewing:
            return
        grant.renewing = True

        def synced(error: NexoError | None) -> None:
            grant.renewing = False
            if error is None:
                grant.extend_past(end)
                grant.shipped = True

        self._runtime.when_unique(synced)

    def written(self, size_bytes: int) -> None:
        """Count bytes that were written and wait for a sync."""
        self._pressure.add(size_bytes)
        self._unwatched_bytes += size_bytes
        if not self._watches or self._unwatched_bytes >= self._pressure.step:
            self._watch()

    def _watch(self) -> None:
        self._watches += 1
        watched, self._unwatched_bytes = self._unwatched_bytes, 0

        def synced(_error: NexoError | None) -> None:
            self._watches -= 1
            self._pressure.remove(watched)
            if self._unwatched_bytes and not self._watches:
                self._watch()

        self._runtime.when_synced(synced)
