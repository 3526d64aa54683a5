"""When the changes that wait for a table of rows by key are merged: once it is worth it, or time.

Merging writes again all rows of the buckets that changes wait for, however few they are. So it is
done when they are a twentieth of those rows, or when the oldest has waited long enough: until then
questions inside Nexo see them (`nexo.lake.changes.overlay`), and other engines do not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nexo.lake.changes.events import SEEN_MS
from nexo.lake.changes.merge import KeyedTable, MergeReport, merge
from nexo.lake.manifests import AvroRecord, partition_values
from nexo.lake.writing.modes import live_entries
from nexo.options.units import millis

if TYPE_CHECKING:
    from pyiceberg.table import Table

EVERY = "nexo.upsert.every"
"""A property of a table: how long changes may wait."""
_USUAL = "60s"
FORGOTTEN_MS = 600_000
WORTH = 0.05
"""Of the rows that a merge writes again, how many changes make it worth it."""


@dataclass(frozen=True, slots=True)
class WaitingChanges:
    """What waits for one table."""

    count: int = 0
    since_ms: int | None = None
    """When the oldest came."""
    rows: int = 0
    """In the buckets that a merge would write again, as far as the changes are divided."""
    removes_all: bool = False
    """Whether all rows are to be removed, which is no more work later."""

    @property
    def is_worth_it(self) -> bool:
        """Whether there are enough to merge them now."""
        return bool(self.count) and (self.removes_all or self.count >= WORTH * self.rows)

    def is_due(self, every_ms: int, now_ms: int) -> bool:
        """Whether they are to be merged now."""
        return self.is_worth_it or self.is_old(every_ms, now_ms)

    def is_old(self, every_ms: int, now_ms: int) -> bool:
        """Whether the oldest has waited for so long; a clock that was set may say anything."""
        return self.since_ms is not None and abs(now_ms - self.since_ms) >= every_ms


def waiting(keyed: KeyedTable) -> WaitingChanges:
    """What waits now, as far as the tables that were read show it."""
    files = [entry["data_file"] for entry in live_entries(keyed.changes)]
    if not files:
        return WaitingChanges()
    seen, key = (_field_id(keyed.changes, each) for each in (SEEN_MS, keyed.terms.keys[0]))
    buckets = {partition_values(each) for each in files}
    undivided = () in buckets
    return WaitingChanges(
        sum(each["record_count"] for each in files),
        min(_lowest(each, seen) for each in files),
        sum(
            file["record_count"]
            for file in (entry["data_file"] for entry in live_entries(keyed.rows))
            if undivided or partition_values(file) in buckets
        ),
        any(_said(each["null_value_counts"]).get(key, 0) for each in files),
    )


def every_ms_of(properties: Mapping[str, str]) -> int:
    """How long changes may wait, by a table's properties."""
    return millis(properties.get(EVERY, _USUAL), EVERY)


def merge_forgotten(keyed: KeyedTable, now_ms: int) -> MergeReport:
    """Merge what nobody does: the pipeline that kept it there has ended, or was killed."""
    every_ms = max(10 * every_ms_of(keyed.rows.properties), FORGOTTEN_MS)
    if waiting(keyed).is_old(every_ms, now_ms):
        return merge(keyed)
    return MergeReport()


def _field_id(table: Table, column: str) -> int:
    return int(table.schema().find_field(column).field_id)


def _lowest(file: AvroRecord, field_id: int) -> int:
    """The lowest value of a column of whole numbers; 0 if the file does not say."""
    return int.from_bytes(_said(file["lower_bounds"]).get(field_id, b""), "little", signed=True)


def _said(pairs: Sequence[AvroRecord] | None) -> dict[int, Any]:
    """What a file's entry says of its columns, by their ids."""
    return {each["key"]: each["value"] for each in pairs or ()}
