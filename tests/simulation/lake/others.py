"""What other programs do to a table, by PyIceberg and pyarrow alone."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyiceberg.table.statistics import StatisticsFile
from pyiceberg.table.update import RemoveSnapshotsUpdate, SetSnapshotRefUpdate
from pyiceberg.transforms import (
    BucketTransform,
    HourTransform,
    IdentityTransform,
    MonthTransform,
    Transform,
    TruncateTransform,
    YearTransform,
)

from nexo.lake.own_columns import FIELD_IDS
from nexo.lake.paths import local_file
from nexo.lake.reading.ranges import file_ranges
from tests.simulation.lake.model import PARTITIONS, Row, State, TableModel
from tests.simulation.lake.site import Site
from tests.unit.lake import foreign

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Table

_FIELDS: list[tuple[str, Transform[Any, Any]]] = [
    ("partition", IdentityTransform()), ("partition", BucketTransform(2)),
    ("key", BucketTransform(3)), ("key", IdentityTransform()), ("offset", TruncateTransform(4)),
    ("timestamp", HourTransform()), ("timestamp", MonthTransform()),
    ("timestamp", YearTransform()), ("headers", TruncateTransform(1)),
    ("value_type", IdentityTransform()), ("offset", BucketTransform(2)),
]  # fmt: skip


def column(table: Table, name: str) -> str:
    """What one of a stream's own columns is called now."""
    return table.schema().find_column_name(FIELD_IDS[name]) or name


def append(site: Site, table: Table, rows: Sequence[Row], *, metrics: bool = True) -> None:
    """Insert rows."""
    names = {name: column(table, name) for name in FIELD_IDS}
    given = [
        {
            names["partition"]: row.partition, names["offset"]: row.offset,
            names["timestamp"]: None if row.at_ms is None else row.at_ms * 1_000,
            names["key"]: row.key, names["value"]: row.value, names["headers"]: row.name,
            names["value_type"]: 1,
        }
        for row in rows
    ]  # fmt: skip
    foreign.append(table, given, metrics=metrics)


def insert(
    site: Site, table: Table, chance: random.Random, *, odd: bool = False, metrics: bool = True
) -> None:
    """Rows without a place in the log, or odd ones: a second row of an offset, half a place."""
    made = []
    for _ in range(chance.randint(1, 4)):
        row = Row(site.model.name(), None, None, site.now_ns // 1_000_000, None, None)
        row = row._replace(value=b'{"n": %s}' % row.name.encode())
        if odd:
            row = _odd(site.of("records").state, row, chance)
        made.append(row)
    append(site, table, made, metrics=metrics)
    site.change("records", lambda state: state.plus(made))


def _odd(state: State, row: Row, chance: random.Random) -> Row:
    known = [each for each in state.rows.values() if each.has_place and each.value is not None]
    match chance.randrange(5):
        case 0:
            return row._replace(partition=chance.randrange(PARTITIONS))
        case 1:
            return row._replace(offset=3)
        case 2:
            return row._replace(partition=1, offset=-1)
        case 3:
            return row._replace(at_ms=None)
    if not known:
        return row
    twin = chance.choice(known)
    return twin._replace(name=row.name, value=row.value)


def condition(
    table: Table, state: State, chance: random.Random, kind: str
) -> tuple[str, Callable[[Row], bool]]:
    """What a program asks for or deletes, and the same of a row."""
    partition, offset = chance.randrange(PARTITIONS), chance.randint(0, 20)
    name = {each: column(table, each) for each in FIELD_IDS}
    match chance.randrange(5 if kind == "records" else 4):
        case 0:
            return f"{name['partition']} = {partition}", lambda row: row.partition == partition
        case 1:
            end = offset + chance.randint(1, 6)
            text = f"{name['partition']} = {partition} and {name['offset']} >= {offset}"
            return (
                f"{text} and {name['offset']} < {end}",
                lambda row: row.partition == partition and row.offset in range(offset, end),
            )
        case 2:
            times = [row.at_ms for row in state.rows.values() if row.at_ms is not None]
            since = chance.choice(times or [0])
            return (
                f"{name['timestamp']} >= '{_time(since)}'",
                lambda row: row.at_ms is not None and row.at_ms >= since,
            )
    return (
        f"{name['offset']} < {offset}",
        lambda row: row.offset is not None and row.offset < offset,
    )


def _time(at_ms: int) -> str:
    found: str = pa.scalar(at_ms * 1_000, pa.timestamp("us", tz="UTC")).as_py().isoformat()
    return found


def delete(site: Site, name: str, table: Table, chance: random.Random) -> None:
    """Delete what fits a condition, by writing files again (copy-on-write)."""
    expression, fits = condition(table, site.of(name).state, chance, name)
    if chance.random() < 0.7:  # one row only, so that others are left
        rows = [row for row in site.of(name).state.rows.values() if row.has_place]
        if not rows:
            return
        one = chance.choice(rows)
        place = column(table, "partition"), column(table, "offset")
        expression = f"{place[0]} = {one.partition} and {place[1]} = {one.offset}"

        def fits(row: Row) -> bool:
            return (row.partition, row.offset) == (one.partition, one.offset)

    table.delete(expression)
    _forget(site, name, {n for n, row in site.of(name).state.rows.items() if fits(row)})


def _forget(site: Site, name: str, gone: set[str]) -> None:
    site.change(name, lambda state: state.without(gone))


def delete_rows(site: Site, name: str, table: Table, chance: random.Random) -> None:
    """Mark rows of some files as deleted (merge-on-read)."""
    files = [each for each in file_ranges(table) if not each.deletes]
    for each in chance.sample(files, min(len(files), chance.choice([1, 2, 3, 9]))):
        _delete_rows_of(site, name, table, each.file, chance)


def _delete_rows_of(
    site: Site, name: str, table: Table, file: DataFile, chance: random.Random
) -> None:
    some = [n for n in range(file.record_count) if chance.random() < 0.4]
    if not some:
        return
    rows = foreign.rows_of(table, file).select([column(table, each) for each in _PLACE])
    gone = [tuple(row.values()) for n, row in enumerate(rows.to_pylist()) if n in some]
    state = site.of(name).state
    names = {n for _, _, n in gone}
    if name == "latest":
        places = {(partition, offset) for partition, offset, _ in gone}
        names = {n for n, row in state.rows.items() if (row.partition, row.offset) in places}
    foreign.delete_rows(table, file, some)
    _forget(site, name, names)


_PLACE = ("partition", "offset", "headers")


def rewrite(table: Table, chance: random.Random, *, metrics: bool = True) -> None:
    """All rows into one file per part of the table, in any order."""
    if table.current_snapshot() is not None:
        foreign.rewrite(table, chance, metrics=metrics)


def add_field(site: Site, table: Table, chance: random.Random) -> None:
    """Divide the table by one more column; PyIceberg writes to none with two fields of one."""
    source, transform = chance.choice(_FIELDS)
    if FIELD_IDS[source] not in {each.source_id for each in table.spec().fields}:
        with table.update_spec() as update:
            update.add_field(column(table, source), transform, f"field_{site.model.name()}")


def drop_field(table: Table, chance: random.Random) -> None:
    fields = [each.name for each in table.spec().fields if str(each.transform) != "void"]
    if fields:
        with table.update_spec() as update:
            update.remove_field(chance.choice(fields))


def rename(site: Site, table: Table, chance: random.Random) -> None:
    name = column(table, chance.choice(list(FIELD_IDS)))
    with table.update_schema() as update:
        update.rename_column(name, f"column_{site.model.name()}")


def add_column(site: Site, table: Table) -> None:
    made = pa.schema([pa.field(f"note_{site.model.name()}", pa.string())])
    with table.update_schema() as update:
        update.union_by_name(made)


def tag(site: Site, table: Table, chance: random.Random, *, branch: bool = False) -> None:
    """Name a snapshot; a branch may get a commit of its own, which nobody sees elsewhere."""
    known = [each.snapshot_id for each in table.metadata.snapshots]
    if not known:
        return
    number, name = chance.choice(known), f"named_{site.model.name()}"
    if not branch:
        table.manage_snapshots().create_tag(number, name).commit()
        return
    table.manage_snapshots().create_branch(number, name).commit()
    if chance.random() < 0.5:
        row = {column(table, "headers"): f"on {name}"}
        rows = pa.Table.from_pylist([row], schema=table.schema().as_arrow())
        table.refresh().append(rows, branch=name)


def roll_back(
    site: Site, name: str, table: Table, chance: random.Random, *, anywhere: bool = False
) -> None:
    """Make an earlier snapshot the current one; anywhere: any that is left."""
    model = site.of(name)
    known = {each.snapshot_id: each for each in table.metadata.snapshots}
    line, snapshot = [], table.current_snapshot()
    while snapshot is not None:
        line.append(snapshot.snapshot_id)
        snapshot = known.get(snapshot.parent_snapshot_id or 0)
    given = [each for each in (known if anywhere else line) if each in model.snapshots]
    if not given:
        return
    number = chance.choice(given)
    named = {"ref-name": "main", "type": "branch", "snapshot-id": number}
    table.catalog.commit_table(table, (), (SetSnapshotRefUpdate.model_validate(named),))
    model.state = model.snapshots[number]


def expire(table: Table, chance: random.Random) -> None:
    """Expire snapshots as Iceberg's Java does: all but the newest ones of `main`, and named ones.

    By our catalog: PyIceberg's own would leave gaps in the log of snapshots.
    """
    known = {each.snapshot_id: each for each in table.metadata.snapshots}
    kept = {ref.snapshot_id for ref in table.metadata.refs.values()}
    snapshot = table.current_snapshot()
    for _ in range(chance.randint(1, 3)):
        if snapshot is not None:
            kept.add(snapshot.snapshot_id)
            snapshot = known.get(snapshot.parent_snapshot_id or 0)
    if gone := sorted(set(known) - kept):
        update = RemoveSnapshotsUpdate.model_validate({"snapshot-ids": gone})
        table.catalog.commit_table(table, (), (update,))


def add_statistics(site: Site, table: Table) -> None:
    """A file of statistics of the present snapshot."""
    snapshot = table.current_snapshot()
    if snapshot is None:
        return
    path = f"{table.location()}/metadata/statistics-{site.model.name()}.puffin"
    local_file(path).write_bytes(b"PFA1")
    made = StatisticsFile.model_validate(
        {
            "snapshot-id": snapshot.snapshot_id, "statistics-path": path,
            "file-size-in-bytes": 4, "file-footer-size-in-bytes": 4, "blob-metadata": [],
        }
    )  # fmt: skip
    with table.update_statistics() as update:
        update.set_statistics(made)


def drop(site: Site, name: str, table: Table) -> None:
    """Drop the table; its files stay."""
    table.catalog.drop_table(table.name())
    site.model.tables[name] = TableModel()
    site.logs[name] = []
    site.drops += 1
    if name == "records":
        site.model.typed = False  # its contract was in its properties
