"""Files written again: one partition in each, in the order of offsets, without deleted rows.

No row is lost, whoever wrote it: rows without a partition or an offset get files of their own, and
the new files are not used unless they hold as many rows as there were.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from nexo.errors import Corrupt
from nexo.lake.files import DataFileFacts, FileWriter, Target, file_io
from nexo.lake.names import PLACELESS, file_label
from nexo.lake.paths import delete_files
from nexo.lake.reading.ordered import PLACES, row_groups, rows_in_order
from nexo.lake.reading.ranges import FileRange
from nexo.lake.rows import chunked


@dataclass(frozen=True, slots=True)
class OrderedRewrite:
    """Files of a stream's table whose rows are to be in order."""

    table: str
    where: Target
    files: tuple[FileRange, ...]
    kind: str
    """What the names of the new files say."""

    @property
    def paths(self) -> list[str]:
        return [each.path for each in self.files]

    @property
    def size_bytes(self) -> int:
        return sum(int(each.file.file_size_in_bytes) for each in self.files)

    def run(self) -> list[DataFileFacts]:
        """Write the rows; `Corrupt` if not all of them can be read."""
        made: list[DataFileFacts] = []
        try:
            count, ends = self._survey()
            for partition, (first, last) in sorted(ends.items()):
                label = file_label(partition, first, last + 1, self.kind)
                made += FileWriter(self.where, label).save(self._of_partition(partition))
            if count > sum(facts.count for facts in made):
                made += FileWriter(self.where, PLACELESS).save(self._placeless())
            if count != sum(facts.count for facts in made):
                raise Corrupt(
                    f"{count} rows of table {self.table} were to be written again, and "
                    f"{sum(facts.count for facts in made)} were: the files stay as they are"
                )
        except BaseException:
            delete_files(file_io(self.where), [facts.path for facts in made])
            raise
        return made

    def _survey(self) -> tuple[int, dict[int, tuple[int, int]]]:
        """How many rows there are, and the lowest and highest offset of each partition."""
        count, found = 0, dict[int, tuple[int, int]]()
        if all(each.is_ordered and not each.deletes for each in self.files):
            for each in self.files:
                count += each.file.record_count
                first, last = found.get(each.partition, (each.first, each.last))
                found[each.partition] = min(first, each.first), max(last, each.last)
            return count, found
        for each in self.files:
            for rows in row_groups(file_io(self.where), each.path, PLACES, each.deletes):
                count += rows.num_rows
                placed = rows.filter(_has_place(rows.column("partition"), rows.column("offset")))
                ends = placed.group_by("partition").aggregate(
                    [("offset", "min"), ("offset", "max")]
                )
                for row in ends.to_pylist():
                    low, high = row["offset_min"], row["offset_max"]
                    known = found.get(row["partition"], (low, high))
                    found[row["partition"]] = min(low, known[0]), max(high, known[1])
        return count, found

    def _of_partition(self, partition: int) -> Iterator[pa.Table]:
        """All rows of a partition, in order, several of one offset included."""
        io, columns = file_io(self.where), self.where.schema
        found = [each.source for each in self.files if each.may_hold(partition)]
        ordered = rows_in_order(io, found, partition, columns, distinct=False)
        return chunked(batch for rows in ordered for batch in rows.to_batches())

    def _placeless(self) -> Iterator[pa.Table]:
        """The rows that have no place in the log."""
        columns = self.where.schema
        beside = pa.schema([each.with_name(f"nexo: {each.name}") for each in PLACES])
        wanted = pa.schema([*columns, *beside])
        for each in self.files:
            for rows in row_groups(file_io(self.where), each.path, wanted, each.deletes):
                placed = _has_place(*(rows.column(name) for name in beside.names))
                left = rows.filter(pc.invert(placed)).select(columns.names)
                if left.num_rows:
                    yield left


def _has_place(partitions: pa.ChunkedArray, offsets: pa.ChunkedArray) -> pa.ChunkedArray:
    found = pc.and_(pc.greater_equal(partitions, 0), pc.greater_equal(offsets, 0))
    return pc.fill_null(found, False)
