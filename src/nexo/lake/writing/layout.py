"""How a table's files are divided: all rows of a file have the same values of the partition fields.

Other programs may change that, and prune files by it, so files are written by the table's own
partition spec and never under one whose values they do not have. Transforms are Iceberg's:
identity, year, month, day, hour, bucket and truncate. A table with any other one is refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import date, timedelta
from importlib import import_module
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa

from nexo.errors import Conflict
from nexo.lake.rows import DAY_US

if TYPE_CHECKING:
    from pyiceberg.table import Table

PartitionValues: TypeAlias = tuple[Any, ...]
"""A file's values of the partition fields, as numbers, texts, bytes or decimals; None for null."""

_EPOCH = date(1970, 1, 1)
_TRANSFORM = re.compile(r"(\w+)(?:\[(\d+)\])?")
_TIMES = ("year", "month", "day", "hour")
_KNOWN = ("identity", "void", *_TIMES, "bucket", "truncate")


@dataclass(frozen=True, slots=True)
class PartitionField:
    """A field of a partition spec: what is made of which column."""

    column: str
    transform: str
    argument: int = 0
    """Of ``bucket`` and ``truncate``."""

    def values(self, rows: pa.Table) -> pa.Array:
        """The field's value of each row; dates and times as numbers."""
        if self.transform == "void":
            return pa.nulls(rows.num_rows, pa.int32())
        made = _transformed(_one(rows.column(self.column)), self.transform, self.argument)
        return made.cast(_number_type(made.type))


@dataclass(frozen=True, slots=True)
class TableLayout:
    """A partition spec, as tasks need it."""

    spec_id: int = 0
    fields: tuple[PartitionField, ...] = ()

    def parts(self, rows: pa.Table) -> Iterator[tuple[PartitionValues, pa.Table]]:
        """``rows`` by their partition values; each part in the order of ``rows``."""
        if not self.fields:
            yield (), rows
        elif rows.num_rows and (day := self._only_day(rows)) is not None:
            yield (day,), rows
        elif rows.num_rows:
            yield from self._grouped(rows)

    def _only_day(self, rows: pa.Table) -> int | None:
        """The day of all rows, if that is what they are divided by and they share it."""
        import pyarrow.compute as pc  # noqa: PLC0415 - readers do not need it, and it is slow

        if self.fields != _BY_DAY:
            return None
        stamps = rows.column("timestamp").cast(pa.int64())
        found = pc.min_max(stamps).as_py()
        if stamps.null_count:
            return None
        day: int = found["min"] // DAY_US
        return day if found["max"] // DAY_US == day else None

    def _grouped(self, rows: pa.Table) -> Iterator[tuple[PartitionValues, pa.Table]]:
        import pyarrow.compute as pc  # noqa: PLC0415 - readers do not need it, and it is slow

        from nexo.lake.changes.events import changes  # noqa: PLC0415 - as that

        names = [str(number) for number in range(len(self.fields))]
        values = pa.table([field.values(rows) for field in self.fields], names)
        order = pc.sort_indices(values, [(name, "ascending") for name in names])
        rows, values = rows.take(order), values.take(order).combine_chunks()
        starts = [*pc.indices_nonzero(changes(values, names)).to_pylist(), rows.num_rows]
        for start, end in pairwise(starts):
            found = values.slice(start, 1).to_pylist()[0]
            yield tuple(found[name] for name in names), rows.slice(start, end - start)

    def folder(self, values: PartitionValues) -> str:
        """Where files of these values are, below a table's data; for people to look at."""
        for field, value in zip(self.fields, values, strict=True):
            if field == _BY_DAY[0] and value is not None:
                return f"/day={(_EPOCH + timedelta(days=value)).isoformat()}"
        return ""


_BY_DAY = (PartitionField("timestamp", "day"),)


def layout_of(table: Table) -> TableLayout:
    """A table's present layout; `Conflict` if files cannot be written by it."""
    spec, columns = table.spec(), {each.field_id: each for each in table.schema().fields}
    found = []
    for field in spec.fields:
        matched = _TRANSFORM.fullmatch(str(field.transform))
        column = columns.get(field.source_id)
        if matched is None or matched[1] not in _KNOWN or (column is None and matched[1] != "void"):
            raise Conflict(
                f"table {'.'.join(table.name())} is partitioned by {field.name!r} "
                f"({field.transform}), which Nexo cannot write: drop that partition field, or "
                "partition by identity, year, month, day, hour, bucket or truncate of a column "
                "that is no part of another one"
            )
        name = "" if column is None else column.name
        found.append(PartitionField(name, matched[1], int(matched[2] or 0)))
    return TableLayout(spec.spec_id, tuple(found))


def undivided(table: Table) -> TableLayout | None:
    """A layout that a table has had in which nothing is divided."""
    found = (each.spec_id for each in table.specs().values() if not each.fields)
    spec_id = next(found, None)
    return None if spec_id is None else TableLayout(spec_id)


def _transformed(column: pa.Array, transform: str, argument: int) -> pa.Array:
    if transform == "identity":
        return column
    # Not typed, and only some tables need it.
    kernels = import_module("pyiceberg_core").transform
    kernel: Callable[..., pa.Array] = getattr(kernels, transform)
    return kernel(column) if transform in _TIMES else kernel(column, argument)


def _number_type(kind: pa.DataType) -> pa.DataType:
    """What a date or time is written as."""
    if pa.types.is_date32(kind):
        return pa.int32()
    return pa.int64() if pa.types.is_timestamp(kind) else kind


def _one(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks)
