"""What a shared group shows of itself."""

from __future__ import annotations

import msgspec

from nexo.brokers.stream.groups.lane import Lane
from nexo.brokers.stream.groups.records import Parking


class ParkedRange(msgspec.Struct, frozen=True, array_like=True):
    """Messages that were set aside alike."""

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


class LaneStatus(msgspec.Struct, frozen=True):
    """Counts of messages in one partition; ``lag`` is all that is not finished."""

    floor: int
    in_flight: int
    to_redeliver: int
    parked: int
    lag: int


def lane_status(lane: Lane, end: int) -> LaneStatus:
    """Where a group stands in a partition that may be delivered up to ``end``."""
    in_flight = lane.inflight.count()
    return LaneStatus(
        floor=lane.floor,
        in_flight=in_flight,
        to_redeliver=lane.pending - in_flight,
        parked=lane.parked.count(),
        lag=lane.pending + lane.unread(lane.cursor, end),
    )
