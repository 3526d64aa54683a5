"""What must hold after every step, seen through every way to read the lake."""

from __future__ import annotations

import random
from collections import Counter
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from nexo.batch import verify
from nexo.lake.own_columns import FIELD_IDS, ROWS
from nexo.lake.paths import local_file
from nexo.lake.reading.ordered import row_groups
from nexo.lake.reading.replay import LakeReader
from nexo.lake.reading.stored import find
from nexo.lake.schema import marked
from nexo.lake.snapshot import COMMIT_ID
from nexo.lake.tables import held_offsets, missing_ranges
from tests.simulation.lake.model import PARTITIONS, Row, State
from tests.simulation.lake.others import column, condition
from tests.simulation.lake.site import KINDS, LOG, Site, digest, found

if TYPE_CHECKING:
    from pyiceberg.table import Table

_MINUTE_MS = 60_000
"""What Iceberg's Java allows a table's times to go back."""


def check(site: Site, chance: random.Random, *, thorough: bool = False) -> None:
    """What both tables hold; unless thorough, through some of the ways to read them."""
    for name in KINDS:
        table = site.table(name)
        if table is None:
            continue
        _metadata(site, name, table)
        held, wanted = held_offsets(table), site.of(name).state.held
        if held != wanted:
            raise found("offsets", f"{name} is at {held}, not at {wanted}")
        _rows(site, name, table, chance, thorough)
        noted = missing_ranges(table.properties)
        for partition, offset in site.of(name).state.lost:
            if not any(first <= offset < end for first, end in noted.get(partition, ())):
                raise found("missing", f"{partition}:{offset} is in neither tier: {noted}")
    _stored(site)
    _replay(site, chance)


def last(site: Site) -> None:
    """At the end: originals of copies are as they were."""
    for folder, before in site.copied.items():
        if digest(folder) != before:
            raise found("copies", "the folder of which a copy was used was written to")


# -- rows ------------------------------------------------------------------------------


def _rows(site: Site, name: str, table: Table, chance: random.Random, thorough: bool) -> None:
    state, by_place = site.of(name).state, name == "latest"
    check_name = "latest" if by_place else "rows"
    way = chance.randrange(4)
    if thorough or way == 0:
        _same(check_name, _scanned(table), state.rows, by_place)
    if site.model.typed and not by_place and (thorough or way == 1):
        _typed(table, state)
    snapshots = site.of(name).snapshots
    known = [each.snapshot_id for each in table.metadata.snapshots if each.snapshot_id in snapshots]
    if known and (thorough or way == 2):
        number = chance.choice(known)
        then = snapshots[number].rows
        _same("time travel", _scanned(table, snapshot_id=number), then, by_place)
    if thorough or way == 3:
        expression, fits = condition(table, state, chance, name)
        asked = {each: row for each, row in state.rows.items() if fits(row)}
        some = _scanned(table, row_filter=expression)
        _same(check_name, some, asked, by_place, f" where {expression}")


def _scanned(table: Table, **asked: Any) -> list[Row]:
    """Rows as PyIceberg reads them."""
    number = asked.get("snapshot_id")
    schema = table.schema()
    if number is not None:
        snapshot = table.snapshot_by_id(number)
        assert snapshot is not None
        schema = next(
            each for each in table.metadata.schemas if each.schema_id == snapshot.schema_id
        )
    rows = table.scan(**asked).to_arrow()
    names = [schema.find_column_name(FIELD_IDS[each]) for each in _COLUMNS]
    return as_rows(rows.select(names))


_COLUMNS = ("headers", "partition", "offset", "timestamp", "key", "value")


def as_rows(rows: pa.Table) -> list[Row]:
    columns = [each.to_pylist() for each in rows.columns]
    columns[3] = [None if each is None else _ms(each) for each in columns[3]]
    return [Row(*values) for values in zip(*columns, strict=True)]


def _ms(stamp: Any) -> int:
    found: float = stamp.timestamp() * 1_000
    return round(found)


def _same(
    check_name: str, seen: list[Row], wanted: dict[str, Row], by_place: bool, where: str = ""
) -> None:
    """The same rows; by place where it is open which row of an offset counts."""
    key = _place if by_place else tuple[Any, ...]
    counted = Counter(map(key, seen)), Counter(map(key, wanted.values()))
    more, less = counted[0] - counted[1], counted[1] - counted[0]
    if more or less:
        text = f"{more.total()} rows too many, {less.total()} missing{where}: "
        raise found(check_name, f"{text}{list(more)[:3]} {list(less)[:3]}")


def _place(row: Row) -> tuple[Any, ...]:
    return row.partition, row.offset, row.key


def _typed(table: Table, state: State) -> None:
    rows = table.scan(selected_fields=(column(table, "headers"), "n")).to_arrow().to_pylist()
    for row in rows:
        name, number = row[column(table, "headers")], row["n"]
        has_value = state.rows[name].value is not None
        wanted = int(name) if has_value else None
        if number != wanted and (number is not None or name in state.filled):
            raise found("typed", f"row {name} has {number}, not {wanted}")


def _stored(site: Site) -> None:
    """What SQL is given to read."""
    table, stored = site.table("records"), find(site.lake, LOG)
    if table is None or stored is None:
        return
    wanted = marked(pa.schema([ROWS.field(each) for each in _COLUMNS]), FIELD_IDS)
    rows = [
        row
        for file in stored.files()
        for group in row_groups(table.io, file.path, wanted, file.deletes)
        for row in as_rows(group)
    ]
    _same("rows", rows, site.of("records").state.rows, False, " in SQL")
    if dict(stored.offsets) != site.of("records").state.held:
        raise found("offsets", f"SQL has {stored.offsets}, not {site.of('records').state.held}")


def _replay(site: Site, chance: random.Random) -> None:
    """What the broker reads: each partition's records, in order, once."""
    state, table = site.of("records").state, site.table("records")
    if table is None:
        return
    reader = chance.choice([site.reader, LakeReader(site.lake, LOG.name)])
    for partition in range(PARTITIONS):
        end = state.held.get(partition, 0)
        first = chance.choice([0, chance.randint(0, max(end - 1, 0))])
        at, seen = first, []
        while at < end:
            reply = reader.read(partition, at, chance.choice([1, 1 << 20]))
            batch = [each for entry in reply.entries for each in verify(entry).records()]
            seen += [each for each in batch if at <= each.offset < end]
            if reply.next_offset <= at:
                raise found("replay", f"partition {partition} stays at {at} of {end}")
            at = reply.next_offset
        rows = state.placed(partition, first, end)
        if [each.offset for each in seen] != list(rows):
            given = [each.offset for each in seen]
            raise found("replay", f"partition {partition}: {given}, not {list(rows)}")
        for each in seen:
            values = [(row.key, row.value) for row in rows[each.offset]]
            if (each.key, each.value) not in values:
                raise found("replay", f"{partition}:{each.offset} is {each.value!r} not {values}")


# -- metadata --------------------------------------------------------------------------


def _metadata(site: Site, name: str, table: Table) -> None:
    """What Iceberg's Java asks of a table when it opens it, and time travel."""
    metadata = table.metadata
    last_ms = metadata.last_updated_ms
    files = [each.timestamp_ms for each in metadata.metadata_log]
    log = [each.timestamp_ms for each in metadata.snapshot_log]
    for times in ([*files, last_ms], [*log, last_ms]):
        if any(after - before < -_MINUTE_MS for before, after in pairwise(times)):
            raise found("times", f"the times of {name} go back: {times}")
    known = {each.snapshot_id: each for each in metadata.snapshots}
    for each in metadata.snapshots:
        parent = known.get(each.parent_snapshot_id or 0)
        is_ours = each.summary is not None and each.summary.get(COMMIT_ID) is not None
        if parent and is_ours and each.timestamp_ms < parent.timestamp_ms:
            raise found("times", f"a snapshot of {name} is older than its parent")
    for path in (each.statistics_path for each in metadata.statistics):
        if not local_file(path).exists():
            raise found("refs", f"{name} names {path}, which is gone")
    unknown = {ref.snapshot_id for ref in metadata.refs.values()} - set(known)
    if unknown:
        raise found("refs", f"{name} names snapshots that it lacks: {unknown}")
    _times(site, name, table)


def _times(site: Site, name: str, table: Table) -> None:
    """A time leads to the snapshot that was current then, or to none."""
    seen = site.logs[name]
    if seen and table.snapshot_as_of_timestamp(seen[-1][1]) != table.current_snapshot():
        raise found("time travel", f"the newest time does not lead to the present state of {name}")
    for moment in {at_ms for _, at_ms in seen}:
        then = [number for number, at_ms in seen if at_ms <= moment][-1]
        snapshot = table.snapshot_as_of_timestamp(moment)
        if snapshot is not None and snapshot.snapshot_id != then:
            text = f"{moment} leads to {snapshot.snapshot_id}, {then} was current in {name}"
            raise found("time travel", text)
