"""What a table of rows by key shows once the changes that wait are merged, before they are.

Changes concern few keys. The rows of these keys are made again from what the table has of them,
what is kept beside it and the changes, by the functions that merge them, too; all other rows are
as they are. So whoever asks inside Nexo sees the newest state, whenever it is merged (SPEC P4).

The three tables have to be as they were at one moment. Any will do, that in the middle of a merge
included: all events are in them then, some of them twice.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from nexo.lake.changes.events import SEQUENCE, by_sequence, column, having
from nexo.lake.changes.scd import KeyedRows, Truncates, scd1, scd2
from nexo.lake.changes.terms import KeyTerms


@dataclass(frozen=True, slots=True)
class Overlay:
    """Changes that wait."""

    terms: KeyTerms
    events: pa.Table
    """With a key, in the order in which they came."""
    removals: Truncates | None = None

    @property
    def concerns_all(self) -> bool:
        """Whether any row may be another one afterwards."""
        return self.removals is not None and self.removals.new

    def concerned(self, rows: pa.Table) -> pa.Table:
        """The rows, or what is kept beside them, of keys that have changed."""
        return rows if self.concerns_all else rows.filter(self._having(rows))

    def others(self, rows: pa.Table) -> pa.Table:
        """The rows that stay as they are."""
        return rows.slice(0, 0) if self.concerns_all else rows.filter(pc.invert(self._having(rows)))

    def _having(self, rows: pa.Table) -> pa.Array:
        return having(rows, self.terms.keys, self.events)

    def shown(self, concerned: KeyedRows) -> pa.Table:
        """The rows of the keys that have changed, as they are afterwards."""
        return applied(concerned, self.events, self.terms, self.removals).rows


def overlay_of(terms: KeyTerms, changes: pa.Table, state: pa.Table) -> Overlay:
    """The overlay of all changes that wait; ``state`` has at least its rows without a key."""
    key = terms.keys[0]
    removed, known = (rows.filter(rows.column(key).is_null()) for rows in (changes, state))
    sequences, _ = joined_removals(known, removed, history=terms.history)
    removals = None if sequences is None else Truncates(sequences, bool(removed.num_rows))
    events = changes.filter(changes.column(key).is_valid())
    return Overlay(terms, events.combine_chunks(), removals)


def applied(
    before: KeyedRows,
    events: pa.Table,
    terms: KeyTerms,
    removals: Truncates | None,
    since_ms: int = 0,
) -> KeyedRows:
    """Rows and what is kept beside them after some events."""
    if terms.history:
        return scd2(before, events, terms.keys, terms.tracked, removals=removals, since_ms=since_ms)
    return scd1(before, events, terms.keys, removals=removals, since_ms=since_ms)


def joined_removals(
    known: pa.Table, new: pa.Table, *, history: bool
) -> tuple[pa.Array | None, pa.Table | None]:
    """All sequences at which all rows were removed; and these as rows, if there is a new one.

    Of tables that show the newest rows, only the last one counts.
    """
    rows = by_sequence(pa.concat_tables([known, new]))
    if not rows.num_rows:
        return None, None
    rows = rows if history else rows.slice(rows.num_rows - 1)
    before = by_sequence(known)
    same = column(before if history else before.slice(max(before.num_rows - 1, 0)), SEQUENCE)
    sequences = column(rows, SEQUENCE)
    return sequences, None if same.equals(sequences) else rows
