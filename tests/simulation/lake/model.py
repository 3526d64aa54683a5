"""What a stream's tables should hold, as plain dictionaries."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

PARTITIONS = 3


class Row(NamedTuple):
    """A row; its text ``name`` is stored as its headers, and is its own in all tables."""

    name: str
    partition: int | None
    offset: int | None
    at_ms: int | None
    key: bytes | None
    value: bytes | None

    @property
    def has_place(self) -> bool:
        return self.partition is not None and self.offset is not None


@dataclass(frozen=True)
class State:
    """What a table holds at one snapshot; never changed, only replaced."""

    rows: dict[str, Row] = field(default_factory=dict)
    held: dict[int, int] = field(default_factory=dict)
    """Per partition: it has taken everything below."""
    filled: frozenset[str] = frozenset()
    """Rows whose typed column has its value; others may have it."""
    lost: frozenset[tuple[int, int]] = frozenset()
    """Partitions and offsets of records that neither the table nor the log has."""

    def without(self, gone: Iterable[str]) -> State:
        names = set(gone)
        return replace(self, rows={n: row for n, row in self.rows.items() if n not in names})

    def plus(self, rows: Iterable[Row]) -> State:
        return replace(self, rows=self.rows | {row.name: row for row in rows})

    def placed(self, partition: int, low: int = 0, high: int = 1 << 62) -> dict[int, list[Row]]:
        """A partition's rows by their offsets."""
        found: dict[int, list[Row]] = {}
        for row in self.rows.values():
            if row.partition == partition and row.offset is not None and low <= row.offset < high:
                found.setdefault(row.offset, []).append(row)
        return dict(sorted(found.items()))


@dataclass
class TableModel:
    """A table: its present state, and that of each of its snapshots."""

    state: State = field(default_factory=State)
    snapshots: dict[int, State] = field(default_factory=dict)
    history: list[int] = field(default_factory=list)
    """Which snapshots were current, one after the other."""


class Model:
    """A stream's log and its tables."""

    def __init__(self) -> None:
        self.log: list[list[Row]] = [[] for _ in range(PARTITIONS)]
        self.tables = {"records": TableModel(), "latest": TableModel()}
        self.hot = [0] * PARTITIONS
        """Where each partition's log begins: it has dropped what was in the table."""
        self.count = 0
        self.typed = False

    def name(self) -> str:
        """A name that no row has."""
        self.count += 1
        return str(self.count)

    def publish(self, chance: random.Random, partition: int, count: int, now_ms: int) -> None:
        """Records that clients publish: some without a key, some that delete their key."""
        log = self.log[partition]
        for _ in range(count):
            name = self.name()
            key = chance.choice([None, b"a", b"b", b"c", b"d"])
            tombstone = key is not None and chance.random() < 0.1
            value = None if tombstone else b'{"n": %s}' % name.encode()
            at_ms = now_ms - chance.choice([0, 0, 0, 3_600_000, 86_400_000])
            log.append(Row(name, partition, len(log), at_ms, key, value))

    def derive(self, taken: dict[int, tuple[int, int]]) -> State:
        """The newest records after a step that takes, per partition, from an offset to an end.

        Of several rows of one offset any may count; then nothing is said about them.
        """
        source, latest = self.tables["records"].state, self.tables["latest"].state
        rows = {n: row for n, row in latest.rows.items() if row.partition not in taken}
        for partition, (after, end) in taken.items():
            kept = latest.placed(partition, 0, after) | source.placed(partition, after, end)
            newest: dict[bytes, Row] = {}
            for at_offset in kept.values():
                row = at_offset[0]
                if row.key is None:
                    rows[row.name] = row
                else:
                    newest[row.key] = row
            rows |= {row.name: row for row in newest.values() if row.value is not None}
        held = latest.held | {partition: end for partition, (_, end) in taken.items()}
        return State(rows, held, latest.filled)
