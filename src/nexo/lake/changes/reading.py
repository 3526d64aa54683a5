"""Reading a table of rows by key with the changes that wait, a part at a time, where the data is.

A part is a bucket: its rows, what is kept beside them, and its changes. If rows are not all divided
alike, which the next merge sees to, the whole table is one part.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from nexo.lake.changes.merge import (
    ChangeRows,
    KeyedFile,
    KeyedTable,
    changes_by_bucket,
    keyed_files,
    read_rows,
    unmarked,
    way_of,
)
from nexo.lake.changes.overlay import overlay_of
from nexo.lake.changes.scd import KeyedRows
from nexo.lake.changes.terms import KeyTerms
from nexo.lake.files import Target, file_io, place_of
from nexo.lake.reading.ordered import SourceFile, row_groups
from nexo.lake.reading.ranges import file_ranges
from nexo.lake.writing.layout import PartitionValues

if TYPE_CHECKING:
    pass


@dataclass(frozen=True, slots=True)
class KeyedPart:
    """Files whose rows are read together; without changes, the rows are as they are."""

    rows: tuple[SourceFile, ...]
    state: tuple[str, ...]
    changes: tuple[ChangeRows, ...]
    size_bytes: int


@dataclass(frozen=True, slots=True)
class KeyedReading:
    """Reads parts of one table."""

    rows: Target
    state: Target
    terms: KeyTerms

    def read(self, part: KeyedPart) -> Iterator[pa.Table]:
        """The rows as they are once the changes are merged."""
        if not part.changes:
            yield from self._stored(part)
            return
        io, events = file_io(self.state), unmarked(self.state.schema)
        state = read_rows(io, part.state, events)
        found = overlay_of(self.terms, read_rows(io, part.changes, events), state)
        concerned = [unmarked(self.rows.schema).empty_table()]
        for rows in self._stored(part):
            yield found.others(rows)
            concerned.append(found.concerned(rows))
        keyed = KeyedRows(pa.concat_tables(concerned), found.concerned(state))
        yield found.shown(keyed)

    def _stored(self, part: KeyedPart) -> Iterator[pa.Table]:
        io, shape = file_io(self.rows), unmarked(self.rows.schema)
        for file in part.rows:
            for rows in row_groups(io, file.path, self.rows.schema, file.deletes):
                yield rows.cast(shape)


def keyed_reading(keyed: KeyedTable) -> KeyedReading:
    """What reads a table."""
    return KeyedReading(place_of(keyed.rows), place_of(keyed.state), keyed.terms)


def parts_of(keyed: KeyedTable) -> list[KeyedPart]:
    """All parts of a table as it was read."""
    files = [keyed_files(each, all_rows=False) for each in (keyed.rows, keyed.state)]
    waiting, way = keyed_files(keyed.changes), way_of(keyed.rows.spec())
    sources = {each.path: each.source for each in file_ranges(keyed.rows)}
    if waiting and any(each.way != way for some in files for each in some):
        rows, state = ({(): some} for some in files)
        changes: Mapping[PartitionValues, Sequence[ChangeRows]] = {
            (): [each.path for each in waiting]
        }
    else:
        rows, state = map(_by_bucket, files)
        changes = changes_by_bucket(keyed, waiting)
    emptied = [each for values in changes if None in values for each in changes[values]]
    removals = [each for values in state if None in values for each in state[values]]
    return [
        KeyedPart(
            tuple(sources[each.path] for each in rows.get(values, ())),
            tuple(each.path for each in [*removals, *state.get(values, ())]),
            (*emptied, *changes.get(values, ())),
            sum(each.size_bytes for each in rows.get(values, ())),
        )
        for values in dict.fromkeys([*rows, *(each for each in changes if None not in each)])
    ]


def _by_bucket(files: Sequence[KeyedFile]) -> dict[PartitionValues, list[KeyedFile]]:
    found = defaultdict[PartitionValues, list[KeyedFile]](list)
    for each in files:
        found[each.values].append(each)
    return found
