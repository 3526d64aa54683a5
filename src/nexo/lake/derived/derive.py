"""Tables made from a stream's table, step by step: newest records per key, dead letters.

A derived table has offsets of its own and moves them in the commit that adds its files, as the
stream's table does (`nexo.lake.once`). A crash leaves it behind but exact, and the next step
continues from there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from nexo.batch.partitions import Growths
from nexo.lake.files import DataFileFacts, FileWriter, Target, file_io, target
from nexo.lake.names import file_label
from nexo.lake.once import WrittenRange, commit
from nexo.lake.reading.ordered import SourceFile, WantedOffsets, every, rows_in_order
from nexo.lake.reading.ranges import FileRange, file_ranges
from nexo.lake.tables import held_offsets

if TYPE_CHECKING:
    from pyiceberg.table import Table


@dataclass(frozen=True, slots=True)
class DeriveStep:
    """One partition's step: everything below ``end``; what is below ``after`` was taken before."""

    partition: int
    after: int | None
    end: int
    kept: Sequence[SourceFile]
    """Files of the derived table that hold what earlier steps left; they may hold more."""
    added: Sequence[SourceFile]
    """Files of the stream's table that hold what came since; they may hold more."""
    target: Target
    rivals: Sequence[DeriveStep] = ()
    """Those of the partitions that may hold newer records of its keys, after ``growths``."""
    growths: Growths | None = None

    def writer(self, kind: str) -> FileWriter:
        return FileWriter(self.target, file_label(self.partition, self.after or 0, self.end, kind))

    def rows(self, columns: pa.Schema, wanted: WantedOffsets = every) -> Iterator[pa.Table]:
        """What earlier steps left, then what came since, in the order of offsets.

        ``wanted`` may leave out row groups by their first and last offset.
        """
        io, after = file_io(self.target), self.after or 0
        yield from rows_in_order(io, self.kept, self.partition, columns, high=after, wanted=wanted)
        yield from self.new_rows(columns, wanted)

    def new_rows(self, columns: pa.Schema, wanted: WantedOffsets = every) -> Iterator[pa.Table]:
        """What came since."""
        io, low, high = file_io(self.target), self.after or 0, self.end
        return rows_in_order(io, self.added, self.partition, columns, low, high, wanted=wanted)


def steps(
    source: Table,
    table: Table,
    wanted: Callable[[FileRange], bool] = lambda _: True,
    ends: Mapping[int, int] | None = None,
    together: Callable[[int], Iterable[int]] = lambda _: (),
) -> list[DeriveStep]:
    """What ``table`` lacks of ``source``, per partition, looking only at ``wanted`` files.

    It stops at ``ends``, if they are given. A partition is taken ``together`` with others. If
    something is new and another program has put several partitions into one of the table's files,
    there is a step for every partition: the file can only be replaced as a whole.
    """
    done, where = held_offsets(table), target(table)
    ends = held_offsets(source) if ends is None else ends
    due = {partition for partition, end in ends.items() if end > done.get(partition, 0)}
    if not due:
        return []
    kept, added = file_ranges(table), [each for each in file_ranges(source) if wanted(each)]
    if not all(each.is_ordered for each in kept):
        due = set(ends)
    due.update(other for each in list(due) for other in together(each))
    found = []
    for partition in sorted(due):
        after, end = done.get(partition), ends.get(partition, 0)
        new = [each.source for each in added if _is_new(each, partition, after or 0)]
        former = [each.source for each in kept if each.may_hold(partition)]
        found.append(DeriveStep(partition, after, max(end, after or 0), former, new, where))
    return found


def _is_new(part: FileRange, partition: int, after: int) -> bool:
    return part.may_hold(partition) and (part.offsets is None or part.last >= after)


def finish(
    table: Table,
    done: Sequence[DeriveStep],
    written: Sequence[Sequence[DataFileFacts]],
    replaced: Sequence[str] = (),
) -> Table:
    """Add the steps' files, remove ``replaced`` ones and move the offsets, in one commit."""
    taken = [
        WrittenRange(step.partition, step.after, step.end, files)
        for step, files in zip(done, written, strict=True)
    ]
    return commit(table, taken, replaced)
