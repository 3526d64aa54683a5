"""What happened to the rows of some keys, in order: the common part of both kinds of tables.

An event is a row that was written, or the end of one. Events may come late and more than once, so
what a table shows of a key is made again from all events that still matter: those that the table's
rows tell of, those kept beside it (the state), and the new ones.

A column of an event may be unknown: its source did not send it, because it did not change. It has
the value of the last event before it, whenever that one comes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

SEQUENCE, DELETED, UNKNOWN, SEEN_MS = "__SEQUENCE", "__DELETED", "__UNKNOWN", "__SEEN_MS"
"""Columns of an event: its place in the order, whether it ends the row, which columns its source
did not send, and when it came."""
_RANK, _PLACE = "__RANK", "__PLACE"
EMPTIED, ENDS, ROWS_OF_TABLE, STATE, NEW = range(-1, 4)
"""Where an event is from, in the order in which those of one sequence follow each other: all rows
were removed, a version's end, a row of the table, what is kept beside it, and new ones."""


def event_schema(columns: pa.Schema, sequence: pa.DataType) -> pa.Schema:
    """The columns of events of a table with these columns."""
    return pa.schema(
        [
            *columns,
            pa.field(SEQUENCE, sequence),
            pa.field(DELETED, pa.bool_()),
            pa.field(UNKNOWN, pa.list_(pa.field("element", pa.string()))),
            pa.field(SEEN_MS, pa.int64()),
        ]
    )


def shaped(rows: pa.Table, schema: pa.Schema, **given: Any) -> pa.Table:
    """``rows`` with the columns of ``schema``: those of ``given`` hold one value, others null."""
    columns = []
    for field in schema:
        if field.name in given:
            columns.append(pa.repeat(pa.scalar(given[field.name], field.type), rows.num_rows))
        elif field.name in rows.column_names:
            columns.append(rows.column(field.name).cast(field.type))
        else:
            columns.append(pa.nulls(rows.num_rows, field.type))
    return pa.table(columns, schema=schema)


@dataclass(frozen=True, slots=True)
class Folded:
    """Events of some keys, one per key and sequence, by key and sequence; columns are filled in."""

    events: pa.Table
    first: pa.Array
    """Whether an event is its key's first."""
    last: pa.Array
    emptied: pa.Array
    """Whether it is only that all rows of the table were removed."""
    sources: Mapping[str, pa.Array]
    """For columns that may be unknown: the event that each has its value from."""


def folded(parts: Sequence[tuple[int, pa.Table]], keys: Sequence[str], since_ms: int) -> Folded:
    """Events with what they are from, put in order.

    Events seen before ``since_ms`` are about to be forgotten: what has a value from them keeps it.
    """
    schema = parts[0][1].schema
    ranked = [
        rows.append_column(_RANK, pa.array([rank] * rows.num_rows, pa.int8()))
        for rank, rows in parts
    ]
    rows = pa.concat_tables(ranked).combine_chunks()
    rows = _ordered(rows, keys)
    own = _own_group(rows, keys)
    stale = _superseded(own, column(rows, _RANK))
    if pc.any(stale).as_py():
        rows = rows.filter(pc.invert(stale)).combine_chunks()
        own = _own_group(rows, keys)
    rows, sources = _filled(rows, keys, own, since_ms)
    ends = shifted(own, -1, fill=True)
    kept = rows.filter(ends)
    first = changes(kept, keys)
    return Folded(
        kept.select(schema.names).cast(schema),
        first,
        shifted(first, -1, fill=True),
        pc.equal(column(kept, _RANK), EMPTIED),
        {name: each.filter(ends) for name, each in sources.items()},
    )


def _ordered(rows: pa.Table, keys: Sequence[str]) -> pa.Table:
    """By key, by sequence, by where they are from, and else as they came."""
    parts = [column(rows, name) for name in keys]
    parts += _plain(column(rows, SEQUENCE))
    parts += [column(rows, _RANK), pa.array(range(rows.num_rows), pa.int64())]
    parts = _sortable(parts)
    names = [str(number) for number in range(len(parts))]
    order = pc.sort_indices(pa.table(parts, names), [(name, "ascending") for name in names])
    return rows.take(order).combine_chunks()


def by_sequence(rows: pa.Table) -> pa.Table:
    """Events in the order of their sequences, one of each."""
    if not rows.num_rows:
        return rows
    parts = _sortable(_plain(column(rows, SEQUENCE)))
    names = [str(number) for number in range(len(parts))]
    keyed = pa.table(parts, names)
    order = pc.sort_indices(keyed, [(name, "ascending") for name in names])
    keyed = keyed.take(order).combine_chunks()
    return rows.take(order).filter(changes(keyed, names)).combine_chunks()


def _sortable(parts: Sequence[pa.Array]) -> list[pa.Array]:
    """Columns to sort by, nulls first."""
    return [
        each for part in parts for each in ([part.is_valid(), part] if part.null_count else [part])
    ]


def _plain(values: pa.Array) -> list[pa.Array]:
    """The parts of a sequence that decide its place, the most important first."""
    if not pa.types.is_struct(values.type):
        return [values]
    fields = range(values.type.num_fields)
    return [part for n in fields for part in _plain(pc.struct_field(values, [n]))]


def _own_group(rows: pa.Table, keys: Sequence[str]) -> pa.Array:
    """Whether an event's key or sequence is another one than that of the event before it."""
    parts = [*(column(rows, name) for name in keys), *_plain(column(rows, SEQUENCE))]
    names = [str(number) for number in range(len(parts))]
    return changes(pa.table(parts, names), names)


def _superseded(own: pa.Array, ranks: pa.Array) -> pa.Array:
    """What a table's row tells of an event that is kept itself."""
    after = shifted(ranks, -1, fill=NEW)
    followed = pc.and_(pc.invert(shifted(own, -1, fill=True)), pc.less(after, NEW))
    return pc.and_(followed, pc.and_(pc.greater_equal(ranks, ENDS), pc.less(ranks, after)))


def _filled(
    rows: pa.Table, keys: Sequence[str], own: pa.Array, since_ms: int
) -> tuple[pa.Table, dict[str, pa.Array]]:
    """Events whose unknown columns have the values from before them, as far as there are any."""
    lists = column(rows, UNKNOWN)
    names = pc.unique(pc.list_flatten(lists)).to_pylist()
    if not names:
        return rows, {}
    count = rows.num_rows
    places = pa.array(range(count), pa.int64())
    groups = pc.cumulative_sum(own.cast(pa.int64()))
    first, deleted = changes(rows, keys), column(rows, DELETED)
    fresh = pc.fill_null(pc.greater_equal(column(rows, SEEN_MS), since_ms), True)
    flat, parents = pc.list_flatten(lists), pc.list_parent_indices(lists)
    still: dict[str, pa.Array] = {}
    sources: dict[str, pa.Array] = {}
    for name in names:
        listed = pc.is_in(places, value_set=parents.filter(pc.equal(flat, name)).cast(pa.int64()))
        unknown = pc.and_(listed, pc.invert(deleted))
        rootless = pc.and_(unknown, first)
        carries = pc.and_(unknown, pc.invert(first))
        source = pc.fill_null_forward(pc.if_else(carries, pa.scalar(None, pa.int64()), places))
        if name in rows.column_names:
            at = rows.column_names.index(name)
            rows = rows.set_column(at, rows.schema.field(at), column(rows, name).take(source))
        elsewhere = pc.not_equal(groups.take(source), groups)
        open_ = pc.or_(pc.and_(elsewhere, fresh.take(source)), rootless.take(source))
        still[name] = pc.and_(unknown, open_)
        sources[name] = pc.subtract(groups.take(source), 1)
    at = rows.column_names.index(UNKNOWN)
    return rows.set_column(at, rows.schema.field(at), _lists(still, lists.type)), sources


def _lists(masks: Mapping[str, pa.Array], kind: pa.DataType) -> pa.Array:
    """The names whose mask is true, of each row; null if there are none."""
    found: list[list[str] | None] = [None] * len(next(iter(masks.values())))
    for name, mask in masks.items():
        for place in pc.indices_nonzero(mask).to_pylist():
            found[place] = [*(found[place] or ()), name]
    return pa.array(found, kind)


# -- columns ---------------------------------------------------------------------------


def column(rows: pa.Table, name: str) -> pa.Array:
    """A column in one piece."""
    found = rows.column(name)
    return found.chunk(0) if found.num_chunks == 1 else found.combine_chunks()


def shifted(values: pa.Array, by: int, *, fill: Any) -> pa.Array:
    """The values of the rows before (1) or after (-1); ``fill`` where there is none."""
    if not len(values):
        return values
    edge = pa.array([fill], values.type)
    parts = [edge, values.slice(0, len(values) - 1)] if by > 0 else [values.slice(1), edge]
    return pa.concat_arrays(parts)


def changes(rows: pa.Table, names: Sequence[str]) -> pa.Array:
    """Whether a row differs from the one before it in any of these columns; the first one does."""
    if not rows.num_rows:
        return pa.array([], pa.bool_())
    found = [_differs(column(rows, name)) for name in names]
    start = pa.array([True])
    return pa.concat_arrays([start, reduce(pc.or_, found, _none(rows.num_rows - 1))])


def _none(count: int) -> pa.Array:
    return pa.repeat(pa.scalar(False), count)


def _differs(values: pa.Array) -> pa.Array:
    """Whether a value is another one than the value before it; null and NaN equal themselves."""
    before, after = values.slice(0, len(values) - 1), values.slice(1)
    if pa.types.is_null(values.type):
        return _none(len(after))
    if pa.types.is_nested(values.type):
        pairs = zip(before.to_pylist(), after.to_pylist(), strict=True)
        return pa.array([left != right for left, right in pairs], pa.bool_())
    differ = pc.fill_null(pc.not_equal(before, after), False)
    if pa.types.is_floating(values.type):
        both = pc.and_(pc.is_nan(before), pc.is_nan(after))
        differ = pc.and_(differ, pc.invert(pc.fill_null(both, False)))
    return pc.or_(differ, pc.xor(before.is_null(), after.is_null()))


def having(rows: pa.Table, keys: Sequence[str], wanted: pa.Table) -> pa.Array:
    """Whether a row has one of the wanted keys; no key is null."""
    if len(keys) == 1:
        values = rows.column(keys[0])
        found = pc.is_in(values, value_set=column(wanted, keys[0]).cast(values.type).unique())
        return found.combine_chunks() if isinstance(found, pa.ChunkedArray) else found
    places = pa.array(range(rows.num_rows), pa.int64())
    numbered = rows.select(list(keys)).append_column(_PLACE, places)
    asked = wanted.select(list(keys)).cast(numbered.schema.remove(len(keys)))
    found = numbered.join(asked, list(keys), join_type="left semi", use_threads=False)
    return pc.is_in(places, value_set=column(found, _PLACE))
