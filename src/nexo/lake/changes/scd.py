"""What a table shows of its keys' events: the newest row (SCD 1), or all versions (SCD 2).

Each function takes part of a table (its keys are in no other part), what is kept beside it, and new
events, and returns both as they are afterwards. Events may come in any order, in any pieces and
again: the outcome is the same. Of events with the same sequence, the one that came last counts
(`nexo.lake.changes.events` puts them in order).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

import pyarrow as pa
import pyarrow.compute as pc

from nexo.lake.changes.events import (
    DELETED,
    EMPTIED,
    ENDS,
    NEW,
    ROWS_OF_TABLE,
    SEEN_MS,
    SEQUENCE,
    STATE,
    UNKNOWN,
    Folded,
    changes,
    column,
    folded,
    having,
    shaped,
    shifted,
)

START_AT, END_AT = "__START_AT", "__END_AT"
"""Columns of versions: the sequences of the first and of the next event; null if it is current."""


@dataclass(frozen=True, slots=True)
class KeyedRows:
    """Part of a table, and the events that are kept beside it."""

    rows: pa.Table
    state: pa.Table


@dataclass(frozen=True, slots=True)
class Truncates:
    """The sequences at which all rows were removed that have a smaller one."""

    sequences: pa.Array
    new: bool
    """Whether one is new, so that all rows have to be looked at."""


def scd1(
    before: KeyedRows,
    new: pa.Table,
    keys: Sequence[str],
    *,
    removals: Truncates | None = None,
    since_ms: int = 0,
) -> KeyedRows:
    """The newest row of each key; its sequence is in the column `SEQUENCE`.

    Kept are the ends of rows that are no more, so that an older row that comes late does not bring
    one back; and rows with unknown columns, with what those had their values from. What was seen
    before ``since_ms`` is forgotten.
    """
    touched = _touched(before, new, keys, removals, since_ms)
    rows, state = before.rows, before.state
    schema = state.schema
    at_table, at_state = having(rows, keys, touched), having(state, keys, touched)
    if not touched.num_rows:
        return before
    found = folded(
        [
            (ROWS_OF_TABLE, shaped(rows.filter(at_table), schema, **{DELETED: False})),
            (STATE, state.filter(at_state)),
            (NEW, new),
            *_removals(touched, removals, schema),
        ],
        keys,
        since_ms,
    )
    newest, events = found.last, found.events
    lives = pc.and_(newest, pc.invert(column(events, DELETED)))
    open_ = pc.and_(lives, column(events, UNKNOWN).is_valid())
    kept = pc.or_(pc.and_(newest, column(events, DELETED)), pc.or_(open_, _needed(found, open_)))
    kept = pc.and_(kept, pc.invert(found.emptied))
    return KeyedRows(
        pa.concat_tables(
            [rows.filter(pc.invert(at_table)), shaped(events.filter(lives), rows.schema)]
        ),
        pa.concat_tables([state.filter(pc.invert(at_state)), _young(found, kept, new, since_ms)]),
    )


def scd2(
    before: KeyedRows,
    new: pa.Table,
    keys: Sequence[str],
    tracked: Sequence[str],
    *,
    removals: Truncates | None = None,
    since_ms: int = 0,
) -> KeyedRows:
    """All versions of each key's row, from `START_AT` until `END_AT`.

    A version ends when one of the ``tracked`` columns changes; others show its last event's values.
    Kept are all ends, and events that are no version of their own: a late event may come between.
    """
    touched = _touched(before, new, keys, removals, since_ms)
    if not touched.num_rows:
        return before
    rows, state = before.rows, before.state
    schema = state.schema
    at_table, at_state = having(rows, keys, touched), having(state, keys, touched)
    versions = rows.filter(at_table)
    found = folded(
        [
            (ENDS, _ends(versions, keys, schema)),
            (ROWS_OF_TABLE, _starts(versions, schema)),
            (STATE, state.filter(at_state)),
            (NEW, new),
            *_removals(touched, removals, schema),
        ],
        keys,
        since_ms,
    )
    events, deleted = found.events, column(found.events, DELETED)
    lives = pc.invert(deleted)
    fresh = pc.or_(found.first, shifted(deleted, 1, fill=True))
    starts = pc.and_(lives, pc.or_(fresh, changes(events, tracked)))
    cut = pc.or_(
        found.last, pc.or_(shifted(deleted, -1, fill=True), shifted(starts, -1, fill=True))
    )
    stops = pc.and_(lives, cut)
    made = _versions(events, starts, stops, found.last, rows.schema)
    alone = pc.and_(pc.and_(starts, stops), column(events, UNKNOWN).is_null())
    kept = pc.and_(pc.invert(alone), pc.invert(found.emptied))
    return KeyedRows(
        pa.concat_tables([rows.filter(pc.invert(at_table)), made]),
        pa.concat_tables([state.filter(pc.invert(at_state)), _young(found, kept, new, since_ms)]),
    )


# -- what is looked at -----------------------------------------------------------------


def _touched(
    before: KeyedRows,
    new: pa.Table,
    keys: Sequence[str],
    removals: Truncates | None,
    since_ms: int,
) -> pa.Table:
    """The keys to look at: of new events, of what is to be forgotten, or all."""
    old = before.state.filter(pc.less(before.state.column(SEEN_MS), since_ms))
    everything = removals is not None and removals.new
    parts = [new, before.state, before.rows] if everything else [new, old]
    return (
        pa.concat_tables([each.select(list(keys)) for each in parts], promote_options="permissive")
        .group_by(list(keys), use_threads=False)
        .aggregate([])
    )


def _removals(
    touched: pa.Table, removals: Truncates | None, schema: pa.Schema
) -> list[tuple[int, pa.Table]]:
    """The end of each key's row wherever all rows were removed."""
    if removals is None:
        return []
    made = [
        shaped(touched, schema, **{DELETED: True}).set_column(
            schema.get_field_index(SEQUENCE),
            schema.field(SEQUENCE),
            pa.repeat(each, touched.num_rows),
        )
        for each in removals.sequences
    ]
    return [(EMPTIED, each) for each in made]


def _starts(versions: pa.Table, schema: pa.Schema) -> pa.Table:
    return shaped(_renamed(versions, START_AT), schema, **{DELETED: False})


def _ends(versions: pa.Table, keys: Sequence[str], schema: pa.Schema) -> pa.Table:
    ended = versions.filter(versions.column(END_AT).is_valid()).select([*keys, END_AT])
    return shaped(_renamed(ended, END_AT), schema, **{DELETED: True})


def _renamed(rows: pa.Table, name: str) -> pa.Table:
    return rows.rename_columns([SEQUENCE if each == name else each for each in rows.column_names])


# -- what comes of it ------------------------------------------------------------------


def _needed(found: Folded, open_: pa.Array) -> pa.Array:
    """The events that rows with unknown columns have those from."""
    places = pa.array(range(found.events.num_rows), pa.int64())
    lists = column(found.events, UNKNOWN)
    flat, parents = pc.list_flatten(lists), pc.list_parent_indices(lists)
    wanted = []
    for name, sources in found.sources.items():
        listed = pc.is_in(places, value_set=parents.filter(pc.equal(flat, name)).cast(pa.int64()))
        wanted.append(pc.is_in(places, value_set=sources.filter(pc.and_(open_, listed))))
    return reduce(pc.or_, wanted, pa.repeat(pa.scalar(False), len(places)))


def _versions(
    events: pa.Table, starts: pa.Array, stops: pa.Array, last: pa.Array, schema: pa.Schema
) -> pa.Table:
    sequences = column(events, SEQUENCE)
    places = pa.array(range(events.num_rows), pa.int64())
    after = pc.if_else(last, pa.scalar(None, pa.int64()), pc.add(places, 1)).filter(stops)
    shown = events.filter(stops)
    shown = shown.append_column(START_AT, sequences.filter(starts))
    shown = shown.append_column(END_AT, sequences.take(after))
    return shaped(shown, schema)


def _young(found: Folded, kept: pa.Array, new: pa.Table, since_ms: int) -> pa.Table:
    """The events to keep beside a table, but the oldest of each key that were seen long ago.

    What the table's rows told of was seen now. After an event that is kept, all are.
    """
    now_ms = pc.max(new.column(SEEN_MS)).as_py() or since_ms
    events, at = found.events, found.events.schema.get_field_index(SEEN_MS)
    seen = pc.fill_null(column(events, SEEN_MS), now_ms)
    places = pa.array(range(events.num_rows), pa.int64())
    young = pc.and_(kept, pc.greater_equal(seen, since_ms))
    nothing = pa.scalar(None, pa.int64())
    newest = pc.fill_null_forward(pc.if_else(young, places, nothing))
    start = pc.fill_null_forward(pc.if_else(found.first, places, nothing))
    among = pc.fill_null(pc.greater_equal(newest, start), False)
    return events.set_column(at, events.schema.field(at), seen).filter(pc.and_(kept, among))
