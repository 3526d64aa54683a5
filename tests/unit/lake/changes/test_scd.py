"""Changes by key, in any order, in any pieces and again, against a naive model (SPEC P4)."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest

from nexo.lake.changes.events import DELETED, SEQUENCE, event_schema
from nexo.lake.changes.overlay import overlay_of
from nexo.lake.changes.scd import END_AT, START_AT, KeyedRows, Truncates, scd1, scd2
from nexo.lake.changes.terms import KeyTerms
from tests.unit.lake.changes.model import (
    COLUMNS,
    COMPOSED,
    FEEDS,
    PLAIN,
    TRACKED,
    Change,
    arrivals,
    as_events,
    as_sequence,
    feed,
    newest_model,
    versions_model,
)  # fmt: skip


class Shown:
    """A table that is kept by the functions under test."""

    def __init__(self, kind: int, sequence: pa.DataType) -> None:
        self.kind, self.sequence = kind, sequence
        added = [pa.field(SEQUENCE, sequence)]
        if kind == 2:
            added = [pa.field(START_AT, sequence), pa.field(END_AT, sequence)]
        self.now = KeyedRows(
            pa.schema([*COLUMNS, *added]).empty_table(),
            event_schema(COLUMNS, sequence).empty_table(),
        )
        self.emptied: list[Any] = []

    def add(self, changes: Sequence[Change], seen_ms: int = 1, since_ms: int = 0) -> None:
        new = changes_of_all(changes)
        known = set(self.emptied)
        self.emptied = sorted(known | set(new))
        removals = None
        if self.emptied:
            kept = self.emptied if self.kind == 2 else self.emptied[-1:]
            made = pa.array([as_sequence(each) for each in kept], self.sequence)
            removals = Truncates(made, bool(set(new) - known))
        events = as_events(changes, self.sequence, seen_ms)
        keys = ("id", "region")
        if self.kind == 1:
            self.now = scd1(self.now, events, keys, removals=removals, since_ms=since_ms)
        else:
            self.now = scd2(self.now, events, keys, TRACKED, removals=removals, since_ms=since_ms)

    def with_waiting(self, changes: Sequence[Change]) -> Shown:
        """What is shown of changes that are not merged (`nexo.lake.changes.overlay`)."""
        schema = event_schema(COLUMNS, self.sequence)
        found = overlay_of(
            KeyTerms(("id", "region"), self.kind == 2, TRACKED),
            pa.concat_tables(
                [as_events(changes, self.sequence), self._removed(changes_of_all(changes), schema)]
            ),
            self._removed(self.emptied, schema),
        )
        rows, state = self.now.rows, self.now.state
        concerned = KeyedRows(found.concerned(rows), found.concerned(state))
        shown = Shown(self.kind, self.sequence)
        parts = [found.others(rows), found.shown(concerned)]
        shown.now = KeyedRows(pa.concat_tables(parts), state)
        return shown

    @staticmethod
    def _removed(sequences: Sequence[Any], schema: pa.Schema) -> pa.Table:
        rows = [{SEQUENCE: as_sequence(each), DELETED: True} for each in sequences]
        return pa.Table.from_pylist(rows, schema)

    def cut_off(self, before: KeyedRows, *, late: bool) -> None:
        """As a merge that was cut off leaves it: more in the state, rows as they were or as new."""
        state = pa.concat_tables([before.state, self.now.state])
        self.now = KeyedRows(self.now.rows if late else before.rows, state)

    def rows(self) -> list[tuple[Any, ...]]:
        return sorted(
            (
                tuple(
                    tuple(each.values()) if isinstance(each, dict) else each
                    for each in row.values()
                )
                for row in self.now.rows.to_pylist()
            ),
            key=repr,
        )


def changes_of_all(changes: Sequence[Change]) -> list[Any]:
    return [each.sequence for each in changes if each.key is None]


@pytest.mark.parametrize("kind", [1, 2])
@pytest.mark.parametrize("seed", range(10))
def test_any_feed_in_any_order_shows_what_the_model_shows(seed: int, kind: int) -> None:
    model = newest_model if kind == 1 else versions_model
    for number in range(FEEDS // 10):
        rng = random.Random(f"{seed} {number}")
        composed = rng.random() < 0.5
        shown = Shown(kind, COMPOSED if composed else PLAIN)
        came: list[Change] = []
        for batch in arrivals(rng, feed(rng, composed)):
            shown.add(batch)
            came += batch
            assert shown.rows() == sorted(model(came), key=repr), (seed, number)


@pytest.mark.parametrize("kind", [1, 2])
@pytest.mark.parametrize("late", [False, True])
def test_merges_that_are_cut_off_are_healed_by_the_next(late: bool, kind: int) -> None:
    model = newest_model if kind == 1 else versions_model
    for number in range(120, 120 + FEEDS // 4):  # 157 needs what the state had before
        rng = random.Random(f"cut {number}")
        shown = Shown(kind, PLAIN)
        came: list[Change] = []
        waiting: list[Change] = []
        for batch in arrivals(rng, feed(rng, composed=False)):
            waiting += batch
            came += batch
            before, emptied = shown.now, shown.emptied
            shown.add(waiting)
            if rng.random() < 0.5:
                shown.cut_off(before, late=late)
                shown.emptied = emptied
                continue
            waiting = []
            assert shown.rows() == sorted(model(came), key=repr), number
        shown.add(waiting)
        assert shown.rows() == sorted(model(came), key=repr), number


@pytest.mark.parametrize("kind", [1, 2])
@pytest.mark.parametrize("seed", range(10))
def test_changes_that_wait_are_shown_as_if_they_were_merged(seed: int, kind: int) -> None:
    model = newest_model if kind == 1 else versions_model
    for number in range(FEEDS // 10):
        rng = random.Random(f"waiting {seed} {number}")
        composed = rng.random() < 0.5
        shown = Shown(kind, COMPOSED if composed else PLAIN)
        came: list[Change] = []
        waiting: list[Change] = []
        for batch in arrivals(rng, feed(rng, composed)):
            waiting += batch
            came += batch
            expected = sorted(model(came), key=repr)
            assert shown.with_waiting(waiting).rows() == expected, (seed, number)
            if rng.random() < 0.6:
                continue
            before, emptied = shown.now, shown.emptied
            shown.add(waiting)
            lot = rng.random()
            if lot < 0.5:  # some of the tables have it, the changes are still there
                shown.cut_off(before, late=lot < 0.25)
                shown.emptied = shown.emptied if rng.random() < 0.5 else emptied
            else:
                waiting = []
            assert shown.with_waiting(waiting).rows() == expected, (seed, number)


# -- forgetting ------------------------------------------------------------------------

A = (1, "a")
THING = {"price": None, "name": "x", "note": "p"}
OTHER = {"price": None, "name": "y", "note": "q"}


@pytest.mark.parametrize("kind", [1, 2])
def test_an_end_is_kept_until_it_is_forgotten(kind: int) -> None:
    shown = Shown(kind, PLAIN)
    shown.add([Change(A, 5, None)], seen_ms=1)
    shown.add([Change(A, 3, THING)], seen_ms=2)
    ended = [(*A, *THING.values(), 3, 5)] if kind == 2 else []
    assert shown.rows() == ended
    assert shown.now.state.num_rows
    shown.add([Change((2, "b"), 1, THING)], seen_ms=9, since_ms=9)
    assert shown.rows()[: len(ended)] == ended
    assert not shown.now.state.num_rows


def test_what_is_forgotten_leaves_the_versions_as_they_are() -> None:
    shown = Shown(2, PLAIN)
    events = [Change(A, 1, THING), Change(A, 2, THING | {"note": "r"}), Change(A, 4, OTHER)]
    shown.add([*events, Change(A, 6, None), Change(A, 8, THING)])
    before = shown.rows()
    shown.add([Change((2, "b"), 1, THING)], seen_ms=9, since_ms=9)
    assert shown.rows() == [*before, (2, "b", *THING.values(), 1, None)]
    assert not shown.now.state.num_rows
    shown.add([Change(A, 5, THING)], seen_ms=10, since_ms=9)
    spans = sorted(row[-2:] for row in shown.rows() if row[0] == 1)
    assert spans == [(1, 4), (4, 5), (5, 6), (8, None)]


def test_a_value_stays_when_what_it_is_from_is_forgotten() -> None:
    shown = Shown(1, PLAIN)
    shown.add([Change(A, 1, THING)], seen_ms=1)
    shown.add([Change(A, 5, OTHER | {"name": None}, ("name",))], seen_ms=2)
    assert shown.rows() == [(*A, None, "x", "q", 5)]
    shown.add([Change(A, 2, OTHER)], seen_ms=3)
    assert shown.rows() == [(*A, None, "y", "q", 5)]
    shown.add([], seen_ms=9, since_ms=9)
    assert shown.rows() == [(*A, None, "y", "q", 5)]
    assert not shown.now.state.num_rows
    shown.add([Change(A, 7, THING | {"name": None}, ("name",))], seen_ms=10, since_ms=9)
    assert shown.rows() == [(*A, None, "y", "p", 7)]


def test_an_unchanged_key_is_not_looked_at() -> None:
    shown = Shown(1, PLAIN)
    shown.add([Change((number, "a"), 1, THING) for number in range(5)])
    shown.add([Change((9, "a"), 1, THING)])
    assert shown.now.rows.slice(0, 5).column("id").to_pylist() == [0, 1, 2, 3, 4]


def test_numbers_that_are_none_do_not_begin_versions() -> None:
    columns = pa.schema([("id", pa.int64()), ("x", pa.float64()), ("l", pa.list_(pa.int64()))])
    schema = event_schema(columns, PLAIN)
    rows = [
        {"id": 1, "x": x, "l": items, SEQUENCE: n, DELETED: False}
        for n, (x, items) in enumerate(
            [(float("nan"), [1]), (float("nan"), [1]), (None, [1]), (None, None)]
        )
    ]
    shown = pa.schema([*columns, pa.field(START_AT, PLAIN), pa.field(END_AT, PLAIN)])
    before = KeyedRows(shown.empty_table(), schema.empty_table())
    found = scd2(before, pa.Table.from_pylist(rows, schema), ["id"], ["x", "l"])
    assert found.rows.column(START_AT).to_pylist() == [0, 2, 3]
