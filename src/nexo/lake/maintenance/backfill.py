"""Fill typed columns of records that were taken before the columns were there (SPEC I11).

The raw values are in the table, so they are parsed again, file by file. Files whose columns would
not change are left alone; the others are replaced in commits of a few files each. The pipeline and
maintenance may run at the same time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

import pyarrow as pa

from nexo.errors import Conflict, InvalidOption
from nexo.lake.commit import refresh
from nexo.lake.failures import lake_errors
from nexo.lake.files import DataFileFacts, FileWriter, Target, target
from nexo.lake.maintenance.maintain import replace_files
from nexo.lake.names import file_label
from nexo.lake.own_columns import FIELD_IDS
from nexo.lake.reading.ordered import row_groups
from nexo.lake.reading.ranges import FileRange, file_ranges
from nexo.lake.schema import field_id_of, leaf_ids
from nexo.lake.tables import read_point
from nexo.lake.typed.columns import MISFITS, REJECTED, Terms, parser_of
from nexo.lake.typed.values import parsed

if TYPE_CHECKING:
    from pyiceberg.table import Table

FILES_PER_COMMIT = 16
_ROUNDS = 5
"""How often to look again for files that another process replaced."""


@dataclass(slots=True)
class Backfilled:
    """What was done."""

    files: int = 0
    rows: int = 0


def backfill(table: Table) -> Backfilled:
    """Parse all values into the present columns; `InvalidOption` if there are none."""
    done = Backfilled()
    with lake_errors(f"cannot fill the columns of {'.'.join(table.name())}"):
        for _ in range(_ROUNDS):
            if _round(table, done):
                return done
    raise Conflict(
        f"table {'.'.join(table.name())} changes faster than it can be filled: try again"
    )


def _round(table: Table, done: Backfilled) -> bool:
    """Replace the present files; False if another process replaced some of them first."""
    terms = parser_of(refresh(table))
    if terms is None or not terms.columns:
        raise InvalidOption(f"table {'.'.join(table.name())} has no typed columns: set them first")
    where = target(table)
    ids, read_at = _ids(where, terms), read_point(table)
    due = iter([each for each in file_ranges(table) if _lacks(each, ids)])
    undisturbed = True
    while some := list(islice(due, FILES_PER_COMMIT)):
        made = [(part, facts) for part in some if (facts := _filled(table, part, where, terms))]
        undisturbed &= not made or _replace(table, made, read_at, done)
    return undisturbed


def _ids(where: Target, terms: Terms) -> list[int]:
    """Field ids of the columns and of the fields in them."""
    names = (terms.names[column.field_id] for column in terms.columns)
    return [field_id for name in names for field_id in leaf_ids(where.schema.field(name))]


def _lacks(part: FileRange, ids: list[int]) -> bool:
    """Whether a column has no value in a file, which may be older than the column."""
    counts, nulls = part.file.value_counts or {}, part.file.null_value_counts or {}
    return any(counts.get(each, 0) <= nulls.get(each, 0) for each in ids)


def _filled(table: Table, part: FileRange, where: Target, terms: Terms) -> list[DataFileFacts]:
    """A file with its columns filled; nothing if they already are."""
    if not _differs(table, part, where, terms):
        return []
    label = file_label(part.partition, part.first, part.last + 1, "filled")
    writer = FileWriter(where, label if part.is_ordered else "filled")
    return writer.save(_parsed(table, part, where, terms))


def _parsed(table: Table, part: FileRange, where: Target, terms: Terms) -> Iterator[pa.Table]:
    """Rows with their typed columns, and what other programs have added."""
    own = {number: name for name, number in FIELD_IDS.items()}
    made = {*_typed_names(terms), MISFITS}
    columns = [
        field.with_name(own.get(field_id_of(field) or 0, field.name))
        for field in where.schema
        if field.name not in made
    ]
    return parsed(row_groups(table.io, part.path, pa.schema(columns), part.deletes), terms)


def _typed_names(terms: Terms) -> list[str]:
    return [*(terms.names[column.field_id] for column in terms.columns), REJECTED]


def _differs(table: Table, part: FileRange, where: Target, terms: Terms) -> bool:
    names = _typed_names(terms) + ([MISFITS] if terms.permissive else [])
    wanted = pa.schema([where.schema.field(name) for name in names])
    stored = row_groups(table.io, part.path, where.schema, part.deletes)
    return any(
        not before.select(names).equals(after.select(names).cast(wanted))
        for before, after in zip(stored, _parsed(table, part, where, terms), strict=True)
    )


def _replace(
    table: Table,
    made: list[tuple[FileRange, list[DataFileFacts]]],
    read_at: int,
    done: Backfilled,
) -> bool:
    added = [facts for _, files in made for facts in files]
    if not replace_files(table, (part.path for part, _ in made), added, read_at):
        return False
    done.files += len(made)
    done.rows += sum(facts.count for facts in added)
    return True
