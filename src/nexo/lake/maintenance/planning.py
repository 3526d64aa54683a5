"""What is to be merged in a table: planned here, done by tasks on any machine.

Files of streams are brought into the order of offsets (`nexo.lake.maintenance.ordering`), those of
users' tables are merged so that streaming readers go on (`nexo.lake.maintenance.grown`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import TYPE_CHECKING, Protocol

from nexo.errors import InvalidInput, NexoError, Unavailable
from nexo.lake.commit import refresh
from nexo.lake.files import DataFileFacts, target
from nexo.lake.maintenance.grown import grown_rewrites
from nexo.lake.maintenance.ordering import OrderedRewrite
from nexo.lake.reading.ranges import FileRange, file_ranges
from nexo.lake.tables import KIND, NEWEST, USER, read_point
from nexo.lake.user_tables import SORT
from nexo.options.units import size_bytes

if TYPE_CHECKING:
    from pyiceberg.table import Table

FILE_SIZES = ("nexo.file-size", "write.target-file-size-bytes")
"""Properties of a table, ours and Iceberg's: about how large its files are to be."""
_SORTED_BYTES = 32 * 1024**2
"""Rows of a file of this size take half a gigabyte while they are sorted."""
_SMALL = 4
"""A file of less than a quarter of that is small."""


@dataclass(frozen=True, slots=True)
class Care:
    """When a table's files are merged, and how long old ones are kept."""

    small_bytes: int = 32 * 1024**2
    """Smaller files are merged."""
    target_bytes: int = 128 * 1024**2
    """About the size of merged files, unless the table says."""
    min_files: int = 8
    """A day of a partition is merged when it has this many small files in a row."""
    max_manifests: int = 50
    max_snapshots: int | None = None
    """None for what the table says, or 100."""
    grace_s: float = 3_600.0
    """How long a file that no snapshot names is kept."""
    budget_s: float = float("inf")
    """How long one run merges files; the next run continues."""
    merges: bool = True
    """False if others merge files."""

    def of(self, table: Table) -> Care:
        """The same, with the file size that a table asks for, or that can be sorted in memory."""
        wanted = wanted_file_bytes(table.properties)
        if wanted is None and SORT in table.properties:
            wanted = min(_SORTED_BYTES, self.target_bytes)
        if wanted is None:
            return self
        return replace(self, small_bytes=wanted // _SMALL, target_bytes=wanted)


def wanted_file_bytes(properties: dict[str, str]) -> int | None:
    """The file size that a table's properties ask for; `InvalidInput` if it is none."""
    for name in FILE_SIZES:
        if name in properties:
            try:
                return max(size_bytes(properties[name].replace(" ", "")), 1)
            except InvalidInput as error:
                raise InvalidInput(f"table property {name}: {error.message}") from None
    return None


class Rewrite(Protocol):
    """Files whose rows are to be in fewer ones; it is sent to tasks."""

    @property
    def paths(self) -> Sequence[str]: ...
    @property
    def size_bytes(self) -> int: ...
    def run(self) -> list[DataFileFacts]:
        """Write them, on any machine; a failure leaves no file."""


def attempted(work: Rewrite) -> list[DataFileFacts] | NexoError:
    """What a task does: the new files, or why there are none."""
    try:
        return work.run()
    except NexoError as error:
        return error
    except OSError as error:
        return Unavailable(f"cannot merge files: {error}")


@dataclass(frozen=True, slots=True)
class RewritePlan:
    """The rewrites of a table that are due, the most pressing first."""

    table: Table
    read_at: int
    due: tuple[Rewrite, ...]

    @property
    def files(self) -> int:
        return sum(len(each.paths) for each in self.due)

    @property
    def size_bytes(self) -> int:
        return sum(each.size_bytes for each in self.due)


def rewrites(table: Table, care: Care) -> RewritePlan:
    """What is to be merged in a table as it is now."""
    fresh = refresh(table)
    read_at, care = read_point(fresh), care.of(fresh)
    if fresh.properties.get(KIND) == NEWEST:  # each step rewrites them
        return RewritePlan(fresh, read_at, ())
    if USER in fresh.properties:
        found = grown_rewrites(fresh, care.small_bytes, care.target_bytes, care.min_files)
        return RewritePlan(fresh, read_at, tuple(found))
    return RewritePlan(fresh, read_at, tuple(_ordered(fresh, file_ranges(fresh), care)))


def _ordered(table: Table, files: Sequence[FileRange], care: Care) -> Iterator[Rewrite]:
    """Other programs' files first, then small ones next to each other."""
    name = ".".join(table.name())
    foreign = [each for each in files if _is_foreign(each)]
    placeless = [each for each in files if each.is_placeless and not _is_foreign(each)]
    if len(placeless) >= care.min_files:
        foreign += [each for each in placeless if each.file.file_size_in_bytes < care.small_bytes]
    for some in _batches(foreign, care.target_bytes):
        yield OrderedRewrite(name, target(table), tuple(some), "ordered")
    for run in _runs([each for each in files if not _is_foreign(each)], care):
        yield OrderedRewrite(name, target(table), tuple(run), "merged")


def _is_foreign(part: FileRange) -> bool:
    """Whether a file is to be brought into order; rows without a place stay where they are."""
    return bool(part.deletes) or not (part.is_ordered or part.is_placeless)


def _batches(files: Sequence[FileRange], most_bytes: int) -> Iterator[list[FileRange]]:
    """Files that are rewritten together."""
    some, size = list[FileRange](), 0
    for each in files:
        some.append(each)
        size += each.file.file_size_in_bytes
        if size >= most_bytes:
            yield some
            some, size = [], 0
    if some:
        yield some


def _runs(files: Sequence[FileRange], care: Care) -> Iterator[list[FileRange]]:
    """Small files next to each other, of one partition and part of the table, that fit one file."""

    def part_of_table(part: FileRange) -> tuple[int, str]:
        return part.partition, str(part.file.partition)

    ordered = [each for each in files if each.is_ordered]
    for _, found in groupby(sorted(ordered, key=part_of_table), key=part_of_table):
        run: list[FileRange] = []
        size = 0
        for part in found:
            small = part.file.file_size_in_bytes < care.small_bytes
            if not small or size + part.file.file_size_in_bytes > care.target_bytes:
                if len(run) >= care.min_files:
                    yield run
                run, size = [], 0
            if small:
                run.append(part)
                size += part.file.file_size_in_bytes
        if len(run) >= care.min_files:
            yield run
