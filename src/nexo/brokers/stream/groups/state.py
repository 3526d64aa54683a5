"""The durable part of a shared group (SPEC F6), and how each record changes it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from nexo.brokers.stream.groups.progress import Progress
from nexo.brokers.stream.groups.records import (
    Acked,
    Counted,
    Discarded,
    Parking,
    RecordsParked,
    RecordsReplayed,
    SharedRecord,
    SharedSnapshot,
    Skipped,
    Sought,
    Tuned,
)
from nexo.model.stream import Range
from nexo.options.stream import SharedOptions


class SharedState:
    """Options, generation and one `Progress` per partition."""

    __slots__ = ("generation", "journal", "options", "progress")

    def __init__(self, starts: Sequence[int], options: SharedOptions) -> None:
        self.options = options
        self.generation = 1
        self.journal: list[SharedRecord] = []
        self.progress = [Progress(start, keyed=options.ordered_by == "key") for start in starts]

    def grow(self, partitions: int) -> None:
        """Add empty partitions."""
        keyed = self.options.ordered_by == "key"
        self.progress += [Progress(0, keyed=keyed) for _ in range(len(self.progress), partitions)]

    def log(self, record: SharedRecord) -> None:
        """Make a change and journal it."""
        self.apply(record)
        self.journal.append(record)

    def apply(self, record: SharedRecord) -> None:
        """Apply a logged change; the messages it names are not in flight."""
        match record:
            case Acked(ranges):
                self._each(ranges, Progress.retire)
            case Skipped(ranges):
                self._each(ranges, Progress.skip)
            case RecordsReplayed(ranges):
                self._each(ranges, Progress.replay)
            case Discarded(ranges):
                self._each(ranges, Progress.discard)
            case Counted(counted):
                for partition, first, end, deliveries in counted:
                    self.progress[partition].deliveries.set(first, end, deliveries)
            case RecordsParked():
                self._park(record)
            case Sought():
                self._seek(record)
            case Tuned(options):
                self.options = options

    def _each(self, ranges: list[Range], change: Callable[[Progress, int, int], None]) -> None:
        for partition, first, end in ranges:
            change(self.progress[partition], first, end)

    def _park(self, record: RecordsParked) -> None:
        for partition, first, end, deliveries in record.ranges:
            progress = self.progress[partition]
            progress.retire(first, end)
            progress.parked.set(first, end, Parking(deliveries, record.parked_ms, record.reason))

    def _seek(self, record: Sought) -> None:
        self.generation = record.generation
        for partition, offset in record.positions:
            self.progress[partition].reset(offset)

    def snapshot(self) -> SharedSnapshot:
        return SharedSnapshot(
            self.options, self.generation, [progress.snapshot() for progress in self.progress]
        )

    @classmethod
    def restore(cls, snapshot: SharedSnapshot) -> SharedState:
        state = cls([progress.floor for progress in snapshot.progress], snapshot.options)
        state.generation = snapshot.generation
        for progress, saved in zip(state.progress, snapshot.progress, strict=True):
            progress.restore(saved)
        return state
