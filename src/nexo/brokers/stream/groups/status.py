"""What a shared group reports about itself."""

from __future__ import annotations

import msgspec

from nexo.brokers.stream.groups.leases import NEVER
from nexo.brokers.stream.groups.progress import FinishedRanges
from nexo.brokers.stream.groups.records import Parking


class ParkedRange(msgspec.Struct, frozen=True, array_like=True):
    """Messages that were parked with the same reason and time."""

    partition: int
    first: int
    end: int
    parking: Parking


class PartitionStatus(msgspec.Struct, frozen=True):
    """Counts of messages in one partition; ``lag`` is everything that is not finished."""

    floor: int
    in_flight: int
    to_redeliver: int
    parked: int
    lag: int


class RecordStatus(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a group has done with one message, as far as it knows."""

    state: str
    """``unread``, ``in_flight``, ``delayed`` or ``waiting`` (both to be delivered again),
    ``parked`` or ``finished``."""
    deliveries: int = 0
    """That counted before; of a message in flight, with this one."""
    consumer: str | None = None
    """Who holds it."""
    until_ms: int | None = None
    """When the lease ends, or the delay is over."""
    parked_ms: int | None = None
    reason: str = ""


def record_status(progress: FinishedRanges, offset: int) -> RecordStatus:
    """What became of the message at ``offset``."""
    end = offset + 1
    for *_, parking in progress.parked.overlapping(offset, end):
        return RecordStatus(
            "parked", parking.deliveries, parked_ms=parking.parked_ms, reason=parking.reason
        )
    if offset < progress.floor or offset in progress.done:
        return RecordStatus("finished")
    for *_, lease in progress.inflight.overlapping(offset, end):
        until_ms = None if lease.expires_ms >= NEVER else lease.expires_ms
        return RecordStatus("in_flight", lease.attempt, lease.member.name, until_ms)
    deliveries = progress.deliveries.run(offset, end)[1] or 0
    for *_, due_ms in progress.delayed.overlapping(offset, end):
        return RecordStatus("delayed", deliveries, until_ms=due_ms)
    return RecordStatus("waiting" if offset < progress.cursor else "unread", deliveries)


def partition_status(progress: FinishedRanges, end: int) -> PartitionStatus:
    """The state of a group in a partition that may be delivered up to ``end``."""
    in_flight = progress.inflight.count()
    return PartitionStatus(
        floor=progress.floor,
        in_flight=in_flight,
        to_redeliver=progress.pending - in_flight,
        parked=progress.parked.count(),
        lag=progress.pending + progress.unread(progress.cursor, end),
    )
