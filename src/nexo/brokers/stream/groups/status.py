"""What a shared group reports about itself."""

from __future__ import annotations

import msgspec

from nexo.brokers.stream.groups.leases import NEVER
from nexo.brokers.stream.groups.progress import FinishedRanges
from nexo.model.stream import RecordState


class PartitionStatus(msgspec.Struct, frozen=True):
    """Counts of messages in one partition; ``lag`` is everything that is not finished."""

    floor: int
    in_flight: int
    to_redeliver: int
    parked: int
    lag: int


def record_status(progress: FinishedRanges, offset: int) -> RecordState:
    """What became of the message at ``offset``."""
    end = offset + 1
    for *_, parking in progress.parked.overlapping(offset, end):
        return RecordState(state="parked", **msgspec.structs.asdict(parking))
    if offset < progress.floor or offset in progress.done:
        return RecordState(state="finished")
    for *_, lease in progress.inflight.overlapping(offset, end):
        until_ms = None if lease.expires_ms >= NEVER else lease.expires_ms
        return RecordState(
            state="in_flight", deliveries=lease.attempt, consumer=lease.member.name,
            until_ms=until_ms,
        )  # fmt: skip
    deliveries = progress.deliveries.run(offset, end)[1] or 0
    for *_, due_ms in progress.delayed.overlapping(offset, end):
        return RecordState(state="delayed", deliveries=deliveries, until_ms=due_ms)
    state = "waiting" if offset < progress.cursor else "unread"
    return RecordState(state=state, deliveries=deliveries)


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
