"""What the manifests of a table say of its data files: which offsets they hold, and in what order.

Other programs write to these tables, too. A file is taken to be in the order of offsets only if it
says so: it is named as Nexo names files, and its bounds say that it holds one partition. Any other
may hold rows of any partition in any order (`nexo.lake.reading.ordered` reads both).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nexo.lake.names import PLACELESS, file_name, is_named
from nexo.lake.own_columns import FIELD_IDS
from nexo.lake.reading.deletes import check_deletes
from nexo.lake.reading.ordered import SourceFile
from nexo.lake.tables import check_version

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Table

_PARTITION, _OFFSET = FIELD_IDS["partition"], FIELD_IDS["offset"]


@dataclass(frozen=True, slots=True)
class FileRange:
    """A data file, and the rows in it as far as its manifest says; None where it does not."""

    file: DataFile
    partitions: tuple[int, int] | None
    """The lowest and the highest; more than one if another program wrote it."""
    offsets: tuple[int, int] | None
    deletes: tuple[str, ...] = ()
    """Files that may say that rows of it are deleted."""

    @property
    def path(self) -> str:
        return str(self.file.file_path)

    @property
    def partition(self) -> int:
        """The only partition of a file in order."""
        return -1 if self.partitions is None else self.partitions[0]

    @property
    def first(self) -> int:
        """The lowest offset of a file in order."""
        return -1 if self.offsets is None else self.offsets[0]

    @property
    def last(self) -> int:
        """The highest offset of a file in order."""
        return -1 if self.offsets is None else self.offsets[1]

    @property
    def is_ordered(self) -> bool:
        """Whether it says that it is one partition's rows in the order of their offsets."""
        one = self.partitions is not None and self.partitions[0] == self.partitions[1]
        return one and self.offsets is not None and is_named(self.path)

    @property
    def is_placeless(self) -> bool:
        """Whether it was written for rows without a place in the log."""
        return file_name(self.path).startswith(f"{PLACELESS}-")

    def may_hold(self, partition: int) -> bool:
        """Whether rows of a partition may be in it."""
        if any(_all_null(self.file, number) for number in (_PARTITION, _OFFSET)):
            return False
        low, high = self.partitions or (partition, partition)
        return low <= partition <= high

    @property
    def source(self) -> SourceFile:
        """The file, to be read."""
        return SourceFile(self.path, self.offsets, self.is_ordered, self.deletes)


def file_ranges(table: Table, snapshot_id: int | None = None) -> list[FileRange]:
    """A table's files by partition and offset."""
    check_version(".".join(table.name()), table.metadata.format_version)
    found = []
    for task in table.scan(snapshot_id=snapshot_id).plan_files():
        for each in task.delete_files:
            check_deletes(".".join(table.name()), int(each.content), each.file_format.value)
        deletes = tuple(sorted(str(each.file_path) for each in task.delete_files))
        partitions, offsets = _bounds(task.file, _PARTITION), _bounds(task.file, _OFFSET)
        found.append(FileRange(task.file, partitions, offsets, deletes))
    return sorted(found, key=lambda each: (each.partition, each.first, each.path))


def _bounds(file: DataFile, field_id: int) -> tuple[int, int] | None:
    low, high = _number(file.lower_bounds, field_id), _number(file.upper_bounds, field_id)
    return None if low is None or high is None else (low, high)


def _number(bounds: Mapping[int, bytes] | None, field_id: int) -> int | None:
    """A bound of a whole number, of four or eight bytes."""
    found = (bounds or {}).get(field_id)
    return int.from_bytes(found, "little", signed=True) if found else None


def _all_null(file: DataFile, field_id: int) -> bool:
    nulls = (file.null_value_counts or {}).get(field_id)
    return nulls is not None and nulls == file.record_count
