"""What Nexo does to its tables: the steps of its pipeline and of its maintenance."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from nexo.errors import Conflict
from nexo.lake.commit import LostRace, commit_all
from nexo.lake.derived import latest
from nexo.lake.files import FileWriter, target
from nexo.lake.maintenance import backfill as backfilling
from nexo.lake.maintenance import maintain as maintaining
from nexo.lake.maintenance.maintain import Care, maintain
from nexo.lake.names import file_label
from nexo.lake.once import WrittenRange, taking
from nexo.lake.own_columns import ROWS
from nexo.lake.plan import BatchLimits, PlannedRange, planned_ranges
from nexo.lake.tables import held_offsets
from nexo.lake.typed.columns import set_schema
from nexo.protocol.stream import PartitionInfo
from tests.simulation.lake.model import PARTITIONS, Row, State
from tests.simulation.lake.site import LOG, Pipeline, Site, found

if TYPE_CHECKING:
    from pyiceberg.table import Table

Meanwhile = Callable[[], None]
"""Does what falls into a step, once."""
_UNTOUCHED = 10_000
_LONG_S = 86_400_000.0


def ingest(site: Site, chance: random.Random, meanwhile: Meanwhile) -> None:
    """One batch of one of two pipelines."""
    for partition in chance.sample(range(PARTITIONS), chance.randint(1, PARTITIONS)):
        site.model.publish(chance, partition, chance.randint(1, 6), site.now_ns // 1_000_000)
    pipeline = chance.choice(site.pipelines)
    table = _current(pipeline)
    held, typed = dict(site.of("records").state.held), site.model.typed
    if held_offsets(table) != held:
        raise found("offsets", f"the table is at {held_offsets(table)}, not at {held}")
    logs = site.model.log
    parts = [
        PartitionInfo(
            start_offset=0, next_offset=len(log), stable_offset=len(log), size_bytes=len(log),
            tiered_offset=hot, hot_offset=hot,
        )
        for log, hot in zip(logs, site.model.hot, strict=True)
    ]  # fmt: skip
    planned = planned_ranges(LOG.name, held, parts, BatchLimits())
    ranges = [_written(table, each, logs[each.partition]) for each in planned]
    drops = site.drops
    meanwhile()
    (outcome,) = commit_all([taking(table, ranges)])
    now = site.of("records").state.held
    moved = drops != site.drops or any(now.get(each.partition) != each.after for each in planned)
    if isinstance(outcome, Exception):
        pipeline.tables.clear()
        if not (isinstance(outcome, LostRace) and moved):
            raise outcome
        return
    if moved:
        raise found("once", f"planned from {held}, committed at {now}")
    rows = [row for each in planned for row in logs[each.partition][each.first : each.end]]
    ends = {each.partition: each.end for each in planned}
    filled = {row.name for row in rows} if typed else set[str]()
    lost = {(each.partition, n) for each in planned for n in range(each.after or 0, each.first)}

    def taken(state: State) -> State:
        held, known = state.held | ends, state.filled | filled
        return replace(state, held=held, filled=known, lost=state.lost | lost).plus(rows)

    site.change("records", taken)


def retain(site: Site) -> None:
    """The broker drops what the table holds."""
    for partition, end in site.of("records").state.held.items():
        site.model.hot[partition] = max(site.model.hot[partition], end)


def _current(pipeline: Pipeline) -> Table:
    """The table as it is; read again only if somebody changed it."""
    known = pipeline.tables.get(LOG.name)
    if known is None or LOG.name not in pipeline.lake.unchanged(pipeline.tables):
        known = pipeline.tables[LOG.name] = pipeline.lake.ensure(LOG, ROWS)
    return known


def _written(table: Table, part: PlannedRange, log: list[Row]) -> WrittenRange:
    writer = FileWriter(target(table), file_label(part.partition, part.first, part.end))
    writer.write([to_rows(log[part.first : part.end])])
    return WrittenRange(part.partition, part.after, part.end, writer.close(), part.gap)


def to_rows(rows: list[Row]) -> pa.RecordBatch:
    """Rows as a task has them."""
    columns = {
        "partition": [row.partition for row in rows],
        "offset": [row.offset for row in rows],
        "timestamp": [None if row.at_ms is None else row.at_ms * 1_000 for row in rows],
        "key": [row.key for row in rows],
        "value": [row.value for row in rows],
        "headers": [row.name for row in rows],
        "value_type": [1] * len(rows),
    }
    return pa.RecordBatch.from_pydict(columns, schema=ROWS)


@contextmanager
def _beside(module: object, name: str, meanwhile: Meanwhile, *, first: bool) -> Iterator[None]:
    """Have something fall in before or after a function of a module runs."""
    original: Callable[..., Any] = getattr(module, name)

    def function(*given: Any) -> Any:
        if first:
            meanwhile()
        made = original(*given)
        meanwhile()
        return made

    setattr(module, name, function)
    try:
        yield
    finally:
        setattr(module, name, original)
        meanwhile()


def merge(table: Table, chance: random.Random, meanwhile: Meanwhile) -> None:
    """Maintenance; what falls into it comes after it has read files."""
    care = Care(
        min_files=chance.randint(2, 3),
        max_manifests=chance.choice([1, 3, 50]),
        grace_s=_LONG_S,
        target_bytes=chance.choice([2_000, 1 << 27]),
    )
    with _beside(maintaining, "rewritten", meanwhile, first=False):
        maintain(table, care)


def expire(table: Table, chance: random.Random) -> None:
    maintain(table, _expiring(chance.randint(1, 4), _LONG_S))


def sweep(table: Table, chance: random.Random) -> None:
    """Delete at once what no snapshot names."""
    maintain(table, _expiring(chance.randint(1, 20), 0))


def _expiring(snapshots: int, grace_s: float) -> Care:
    return Care(
        min_files=_UNTOUCHED, max_manifests=_UNTOUCHED, max_snapshots=snapshots, grace_s=grace_s
    )


def newest(site: Site, meanwhile: Meanwhile) -> None:
    """One step of the table of newest records."""
    before = site.of("latest").state
    table, steps = latest.plan(site.lake, LOG)
    taken = {each.partition: (each.after or 0, each.end) for each in steps}
    made = site.model.derive(taken)
    written = [latest.run(each) for each in steps]
    meanwhile()
    if not steps:
        return
    is_same = site.lake.unchanged({"latest": table})
    try:
        latest.finish(table, steps, written)
    except Conflict:
        if is_same:
            raise
        return
    changed = before.rows.items() ^ site.of("latest").state.rows.items()
    if not taken.keys().isdisjoint(row.partition for _, row in changed):
        raise found("once", "newest records were replaced although others changed them meanwhile")
    site.change("latest", lambda state: _taken(state, made, taken))


def _taken(state: State, made: State, partitions: Container[int | None]) -> State:
    """A state with some partitions' rows and offsets as they were made."""
    rows = {name: row for name, row in state.rows.items() if row.partition not in partitions}
    rows |= {name: row for name, row in made.rows.items() if row.partition in partitions}
    ends = {number: end for number, end in made.held.items() if number in partitions}
    return replace(state, rows=rows, held=state.held | ends)


def contract(site: Site, table: Table) -> None:
    """A typed column for a field of the values."""
    set_schema(table, {"n": "long"})
    site.model.typed = True


def fill(site: Site, table: Table, meanwhile: Meanwhile) -> None:
    """Fill the typed column of older rows."""
    if not site.model.typed:
        return
    before = site.of("records").state
    try:
        with _beside(backfilling, "replace_files", meanwhile, first=True):
            backfilling.backfill(table)
    except Conflict:
        if site.of("records").state is before:
            raise
        return
    if site.of("records").state is before:
        site.change("records", lambda state: replace(state, filled=frozenset(state.rows)))


def step_clock(site: Site, chance: random.Random) -> None:
    seconds = chance.choice([-86_400, -600, -65, -1, 61, 3_600, 86_400])
    site.now_ns += seconds * 1_000_000_000


def move(site: Site) -> None:
    site.copy_to(site.root / f"moved-{len(site.copied)}-{site.model.name()}", shutil.move)


def copy(site: Site) -> None:
    site.copy_to(site.root / f"copy-{len(site.copied)}-{site.model.name()}", shutil.copytree)
