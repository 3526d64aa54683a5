"""Changes by key against a naive model (SPEC P4)."""

from __future__ import annotations

import os
import random
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pyarrow as pa

from nexo.lake.changes.events import DELETED, SEEN_MS, SEQUENCE, UNKNOWN, event_schema

FEEDS = 3_000 if os.environ.get("SOAK") else int(os.environ.get("CHANGE_FEEDS", "200"))
COLUMNS = pa.schema(
    [
        ("id", pa.int64()),
        ("region", pa.string()),
        ("price", pa.decimal128(10, 2)),
        ("name", pa.string()),
        ("note", pa.string()),
    ]
)
VALUES = ("price", "name", "note")
TRACKED = ("price", "name")
PLAIN = pa.int64()
COMPOSED = pa.struct([("lsn", pa.int64()), ("sub", pa.int32())])


@dataclass(frozen=True)
class Change:
    """One event of a feed; without a key, all rows are removed."""

    key: tuple[Any, ...] | None
    sequence: Any
    values: dict[str, Any] | None
    unknown: tuple[str, ...] = ()


# -- the model -------------------------------------------------------------------------


def grouped(changes: Iterable[Change]) -> dict[tuple[Any, ...], dict[Any, list[Change]]]:
    """Per key and sequence, in the order of arrival; a removal of all comes first."""
    seen = list(changes)
    keys = {each.key for each in seen if each.key is not None}
    found: dict[tuple[Any, ...], dict[Any, list[Change]]] = {key: defaultdict(list) for key in keys}
    for key in keys:
        ends = [each for each in seen if each.key is None]
        for each in [*ends, *(one for one in seen if one.key == key)]:
            found[key][each.sequence].append(each)
    return found


def next_values(now: dict[str, Any] | None, change: Change) -> dict[str, Any] | None:
    if change.values is None:
        return None
    before = now or dict.fromkeys(VALUES)
    return {
        name: before[name] if name in change.unknown else change.values[name] for name in VALUES
    }


def newest_model(changes: Iterable[Change]) -> set[tuple[Any, ...]]:
    rows = set()
    for key, groups in grouped(changes).items():
        now, at = None, None
        for sequence in sorted(groups):
            for change in groups[sequence]:
                now, at = next_values(now, change), sequence
        if now is not None:
            rows.add((*key, *now.values(), at))
    return rows


def versions_model(changes: Iterable[Change]) -> set[tuple[Any, ...]]:
    rows = set()
    for key, groups in grouped(changes).items():
        now: dict[str, Any] | None = None
        start = None
        for sequence in sorted(groups):
            then = now
            for change in groups[sequence]:
                then = next_values(then, change)
            same = (
                now is not None
                and then is not None
                and all(now[name] == then[name] for name in TRACKED)
            )
            if not same:
                if now is not None:
                    rows.add((*key, *now.values(), start, sequence))
                start = sequence
            now = then
        if now is not None:
            rows.add((*key, *now.values(), start, None))
    return rows


# -- feeds -----------------------------------------------------------------------------


def feed(rng: random.Random, composed: bool) -> list[Change]:
    keys = [(number, rng.choice("ab")) for number in range(rng.randint(1, 3))]
    most = rng.choice([6, 12, 40])
    changes = []
    for _ in range(rng.randint(1, 14)):
        number = rng.randint(1, most)
        sequence = (number // 3, number % 3) if composed else number
        lot = rng.random()
        if lot < 0.06:
            changes.append(Change(None, sequence, None))
        elif lot < 0.25:
            changes.append(Change(rng.choice(keys), sequence, None))
        else:
            values = {
                "price": rng.choice([None, Decimal("1.10"), Decimal("2.20")]),
                "name": rng.choice([None, "x", "y"]),
                "note": rng.choice(["p", "q", "r"]),
            }
            unknown = tuple(name for name in VALUES if rng.random() < 0.15)
            if rng.random() < 0.5:
                unknown = ()
            given = {name: None if name in unknown else each for name, each in values.items()}
            changes.append(Change(rng.choice(keys), sequence, given, unknown))
    return changes


def arrivals(rng: random.Random, changes: Sequence[Change]) -> list[list[Change]]:
    """The changes in another order, some again, in batches."""
    order = [*changes, *rng.choices(changes, k=rng.randint(0, 3))]
    if rng.random() < 0.8:
        rng.shuffle(order)
    batches = []
    while order:
        size = rng.randint(1, len(order))
        batches.append(order[:size])
        order = order[size:]
        if rng.random() < 0.2:
            batches.append(batches[-1])  # a batch that is written again
    return batches


def as_sequence(sequence: Any) -> Any:
    if isinstance(sequence, tuple):
        return {"lsn": sequence[0], "sub": sequence[1]}
    return sequence


def as_events(
    changes: Iterable[Change], sequence: pa.DataType, seen_ms: int = 1, columns: pa.Schema = COLUMNS
) -> pa.Table:
    rows = [
        {
            "id": each.key[0],
            "region": each.key[1],
            **(each.values or {}),
            SEQUENCE: as_sequence(each.sequence),
            DELETED: each.values is None,
            UNKNOWN: list(each.unknown) or None,
            SEEN_MS: seen_ms,
        }
        for each in changes
        if each.key is not None
    ]
    return pa.Table.from_pylist(rows, event_schema(columns, sequence))
