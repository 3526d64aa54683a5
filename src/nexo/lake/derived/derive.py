"""Tables made from a stream's table, step by step: newest records per key, dead letters.

A derived table has offsets of its own and moves them in the commit that adds its files, as the
stream's table does (`nexo.lake.once`). A crash leaves it behind but exact, and the next step
continues from there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from nexo.lake.files import DataFileFacts, FileWriter, Target, file_io, target
from nexo.lake.once import WrittenRange, commit
from nexo.lake.read import FileRange, every, file_ranges, row_groups
from nexo.lake.tables import offsets_of

if TYPE_CHECKING:
    from pyiceberg.table import Table


WantedOffsets: TypeAlias = Callable[[int, int], bool]
"""Whether rows from a first to a last offset, both included, are to be read."""


@dataclass(frozen=True, slots=True)
class DeriveStep:
    """One partition's step: everything below ``end``; what is below ``after`` was taken before."""

    partition: int
    after: int | None
    end: int
    kept: Sequence[str]
    """Files of the derived table that hold what earlier steps left."""
    added: Sequence[str]
    """Files of the stream's table that hold what came since; they may hold more."""
    target: Target

    def writer(self, kind: str) -> FileWriter:
        return FileWriter(self.target, f"{self.partition:04}-{self.end:016}-{kind}")

    def rows(self, columns: pa.Schema, wanted: WantedOffsets = every) -> Iterator[pa.Table]:
        """What earlier steps left, then what came since, in the order of offsets.

        ``wanted`` may leave out row groups by their first and last offset.
        """
        io = file_io(self.target)
        for path in self.kept:
            yield from row_groups(io, path, columns, wanted)
        yield from self.new_rows(columns, wanted)

    def new_rows(self, columns: pa.Schema, wanted: WantedOffsets = every) -> Iterator[pa.Table]:
        """What came since."""
        io, low, high = file_io(self.target), self.after or 0, self.end
        within = (pc.field("offset") >= low) & (pc.field("offset") < high)

        def due(first: int, last: int) -> bool:
            return first < high and last >= low and wanted(max(first, low), min(last, high - 1))

        for path in self.added:
            for rows in row_groups(io, path, columns, due):
                yield rows.filter(within)


def steps(
    source: Table, table: Table, wanted: Callable[[FileRange], bool] = lambda _: True
) -> list[DeriveStep]:
    """What ``table`` lacks of ``source``, per partition, looking only at ``wanted`` files."""
    done, ends, where = offsets_of(table.properties), offsets_of(source.properties), target(table)
    kept, added = _paths(file_ranges(table)), [part for part in file_ranges(source) if wanted(part)]
    found = []
    for partition, end in ends.items():
        after = done.get(partition)
        if end > (after or 0):
            new = _paths(part for part in added if part.last >= (after or 0)).get(partition, [])
            found.append(DeriveStep(partition, after, end, kept.get(partition, []), new, where))
    return found


def _paths(found: Iterable[FileRange]) -> dict[int, list[str]]:
    paths: dict[int, list[str]] = {}
    for part in found:
        paths.setdefault(part.partition, []).append(part.path)
    return paths


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
