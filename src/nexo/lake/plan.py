"""What to take next: ranges of offsets between what the lake holds and what readers may see."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from nexo.errors import Conflict


@dataclass(frozen=True, slots=True)
class Limits:
    """How much a micro-batch and one of its tasks take."""

    batch_rows: int = 8_000_000
    task_rows: int = 1_000_000
    task_bytes: int = 128 * 1024**2


@dataclass(frozen=True, slots=True)
class Held:
    """What the broker holds of one partition."""

    start: int
    stable: int
    size_bytes: int
    first: int | None = None
    """The first offset that it gives readers, from the lake; None: the log's ``start``."""

    @property
    def earliest(self) -> int:
        """Where readers may begin."""
        return self.start if self.first is None else self.first

    @property
    def record_bytes(self) -> float:
        """About what a record takes."""
        return self.size_bytes / max(self.stable - self.start, 1)


@dataclass(frozen=True, slots=True)
class Advance:
    """One partition's next step: from ``first`` up to before ``end``, in one commit.

    ``after`` is where the table was, None if it had no offset yet.
    """

    partition: int
    after: int | None
    first: int
    end: int
    record_bytes: float

    def tasks(self, limits: Limits) -> Iterator[tuple[int, int]]:
        """The range, cut so that no task takes too much."""
        step = max(1, min(limits.task_rows, int(limits.task_bytes / max(self.record_bytes, 1))))
        for first in range(self.first, self.end, step):
            yield first, min(first + step, self.end)


def advances(
    stream: str, offsets: Mapping[int, int], held: Sequence[Held], limits: Limits
) -> list[Advance]:
    """The next step of every partition that has something new.

    A partition whose front was forgotten before tiering was on begins where it begins now.
    Raises `Conflict` if the lake is ahead: the broker lost records that the lake has.
    """
    found = []
    share = max(1, limits.batch_rows // max(len(held), 1))
    for partition, part in enumerate(held):
        after = offsets.get(partition)
        first = max(part.start, after or 0)
        if (after or 0) > part.stable:
            raise Conflict(
                f"stream {stream!r}, partition {partition}: the lake holds offsets up to {after}, "
                f"the broker only up to {part.stable}: the broker lost records; restore its data, "
                "or delete the stream and create it anew"
            )
        end = min(part.stable, first + share)
        if end > first:
            found.append(Advance(partition, after, first, end, part.record_bytes))
    return found
