"""What a shared group reports about itself."""

from __future__ import annotations

import msgspec

from nexo.brokers.stream.groups.progress import Progress
from nexo.brokers.stream.groups.records import Parking


class ParkedRange(msgspec.Struct, frozen=True, array_like=True):
    """Messages that were parked with the same reason and time."""

    partition: int
    first: int
    end: int
    parking: Parking


class Holding(msgspec.Struct, frozen=True, array_like=True):
    """Messages in flight to one consumer."""

    consumer: str
    partition: int
    first: int
    end: int
    attempt: int
    expires_ms: int


class PartitionStatus(msgspec.Struct, frozen=True):
    """Counts of messages in one partition; ``lag`` is everything that is not finished."""

    floor: int
    in_flight: int
    to_redeliver: int
    parked: int
    lag: int


def partition_status(progress: Progress, end: int) -> PartitionStatus:
    """The state of a group in a partition that may be delivered up to ``end``."""
    in_flight = progress.inflight.count()
    return PartitionStatus(
        floor=progress.floor,
        in_flight=in_flight,
        to_redeliver=progress.pending - in_flight,
        parked=progress.parked.count(),
        lag=progress.pending + progress.unread(progress.cursor, end),
    )
