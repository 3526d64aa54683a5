"""A table of rows by key, kept up by merging what waits beside it (SPEC P4).

Three tables are divided by the same buckets of the key: the rows, the events that are kept beside
them (`nexo.lake.changes.scd`), and the changes that wait. A change counts once when it is appended
there. Merging rewrites the buckets that changes wait for: it adds to the state, replaces the rows,
and only then removes what the state had before, and the changes. So whenever it is cut off, all
events are there, some of them twice. What was merged may be merged again, so the next merge heals
it, and none of the commits needs a mark of its own.
"""

from __future__ import annotations

import uuid
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from nexo.errors import Conflict
from nexo.lake.changes.buckets import arrange
from nexo.lake.changes.events import SEQUENCE
from nexo.lake.changes.overlay import applied, joined_removals
from nexo.lake.changes.scd import START_AT, KeyedRows, Truncates
from nexo.lake.changes.terms import KeyTerms
from nexo.lake.commit import apply
from nexo.lake.files import DataFileFacts, FileWriter, Target, file_io, place_of, target
from nexo.lake.manifests import DATA, partition_values, read_entries, read_list
from nexo.lake.once import REPLACED, TableCommit, commit_once
from nexo.lake.paths import delete_files, local_path
from nexo.lake.rows import CHUNK_ROWS
from nexo.lake.schema import projected
from nexo.lake.snapshot import FilesGone, TableChange
from nexo.lake.tables import newest_snapshot, read_point
from nexo.lake.writing.layout import PartitionValues, layout_of

if TYPE_CHECKING:
    from pyiceberg.io import FileIO
    from pyiceberg.partitioning import PartitionSpec
    from pyiceberg.table import Table

_ATTEMPTS = 5
"""How often a merge is planned again, because another program was first."""


@dataclass(frozen=True, slots=True)
class KeyedTable:
    """The three tables."""

    rows: Table
    state: Table
    changes: Table
    terms: KeyTerms


@dataclass(frozen=True, slots=True)
class MergeReport:
    """What a merge did."""

    buckets: int = 0
    changes: int = 0
    rows: int = 0
    """Rows that were written again."""


# -- changes ---------------------------------------------------------------------------


def append_changes(keyed: KeyedTable, events: pa.Table, writer: str, number: int) -> bool:
    """Keep a batch of events for the next merge; False if it was kept before."""
    out = FileWriter(target(keyed.changes), "changes")
    added = out.save(_cut(events)) if events.num_rows else []
    _, is_new = commit_once(keyed.changes, writer, number, TableChange(added=added))
    return is_new


def _cut(rows: pa.Table) -> Iterator[pa.Table]:
    for start in range(0, rows.num_rows, CHUNK_ROWS):
        yield rows.slice(start, CHUNK_ROWS)


# -- planning --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BucketMerge:
    """The work of one bucket, as a task has it."""

    values: PartitionValues
    rows: Target
    state: Target
    terms: KeyTerms
    row_files: tuple[str, ...]
    state_files: tuple[str, ...]
    changes: tuple[ChangeRows, ...]
    """In the order in which they came."""
    removals: Truncates | None
    since_ms: int
    label: str
    size_bytes: int = 0
    """Of the files that it reads."""


@dataclass(frozen=True, slots=True)
class MergedBucket:
    """The files that a bucket has now."""

    rows: Sequence[DataFileFacts]
    state: Sequence[DataFileFacts]


ChangeRows: TypeAlias = str | bytes
"""The path of a file, or rows as Arrow streams them."""
RunMerges: TypeAlias = Callable[[Sequence[BucketMerge]], Iterable[MergedBucket]]
"""Runs `merge_bucket` for each, here or on other machines."""


@dataclass(frozen=True, slots=True)
class KeyedFile:
    """A file of one of the tables."""

    path: str
    values: PartitionValues
    way: tuple[str, ...]
    """How the table was divided when it was written: the transforms of the key."""
    count: int
    size_bytes: int


def way_of(spec: PartitionSpec) -> tuple[str, ...]:
    """How files are divided by a partition spec."""
    return tuple(str(each.transform) for each in spec.fields)


def keyed_files(table: Table, *, all_rows: bool = True) -> list[KeyedFile]:
    """A table's files, the oldest first.

    `Conflict` if another program has marked rows as deleted, if all rows have to count.
    """
    name, snapshot, specs = ".".join(table.name()), newest_snapshot(table), table.specs()
    found: list[tuple[int, str, KeyedFile]] = []
    for manifest in [] if snapshot is None else read_list(table.io, snapshot.manifest_list):
        if manifest["content"] != DATA:
            if not all_rows:
                continue
            raise Conflict(
                f"another program marked rows of table {name} as deleted: have it rewrite the "
                "files (as copy on write), so that changes can be merged into them"
            )
        way = way_of(specs[manifest["partition_spec_id"]])
        for entry in read_entries(table.io, manifest):
            file = entry["data_file"]
            values, count = partition_values(file), file["record_count"]
            one = KeyedFile(file["file_path"], values, way, count, file["file_size_in_bytes"])
            found.append((entry["sequence_number"], one.path, one))
    return [one for *_, one in sorted(found, key=lambda each: each[:2])]


def _by_bucket(files: Iterable[KeyedFile]) -> Mapping[PartitionValues, tuple[str, ...]]:
    found = defaultdict[PartitionValues, list[str]](list)
    for each in files:
        found[each.values].append(each.path)
    return {values: tuple(paths) for values, paths in found.items()}


def changes_by_bucket(
    keyed: KeyedTable, files: Iterable[KeyedFile]
) -> Mapping[PartitionValues, tuple[ChangeRows, ...]]:
    """Changes by the bucket of the rows that they concern, in the order in which they came.

    Small batches, and those that came before the table had more buckets, are divided here.
    """
    layout, way = layout_of(keyed.rows), way_of(keyed.rows.spec())
    io, schema = keyed.changes.io, unmarked(place_of(keyed.changes).schema)
    found = defaultdict[PartitionValues, list[ChangeRows]](list)
    for file in files:
        if file.way == way:
            found[file.values].append(file.path)
            continue
        for values, part in layout.parts(read_rows(io, [file.path], schema)):
            found[values].append(_packed(part))
    return {values: tuple(some) for values, some in found.items()}


def _packed(rows: pa.Table) -> bytes:
    """Rows to be sent to a task; a table that is a part of another one would take all of it."""
    out = pa.BufferOutputStream()
    with pa.ipc.new_stream(out, rows.schema) as stream:
        stream.write_table(rows)
    return bytes(out.getvalue())


@dataclass(frozen=True, slots=True)
class _Plan:
    tasks: Sequence[BucketMerge]
    merged: frozenset[str]
    """The files of changes that the tasks read."""
    count: int
    removals: pa.Table | None
    """To be kept beside the rows from now on."""
    old_removals: frozenset[str]
    read_at: tuple[int, int, int]


def _plan(keyed: KeyedTable, since_ms: int) -> _Plan:
    tables = keyed.rows, keyed.state, keyed.changes
    arrange(*tables, keyed.terms.keys)
    stored = [keyed_files(each) for each in tables]
    rows, state, waiting = *map(_by_bucket, stored[:2]), changes_by_bucket(keyed, stored[2])
    nowhere = [values for values in {*state, *waiting} if None in values]
    to_rows, to_state = target(keyed.rows), target(keyed.state)
    known = _removals(to_state, [path for each in nowhere for path in state.get(each, ())])
    new = _removals(to_state, [path for each in nowhere for path in waiting.get(each, ())])
    removals, kept = joined_removals(known, new, history=keyed.terms.history)
    is_new = bool(new.num_rows)  # also if the state was added to, and the merge then cut off
    buckets = {*rows, *state, *waiting} if is_new else {*waiting}
    sizes = Counter[PartitionValues]()
    for each in (file for files in stored for file in files):
        sizes[each.values] += each.size_bytes
    for values, some in waiting.items():
        sizes[values] += sum(len(each) for each in some if isinstance(each, bytes))
    label = f"merge-{uuid.uuid4().hex[:8]}"
    tasks = [
        BucketMerge(
            values, to_rows, to_state, keyed.terms,
            rows.get(values, ()), state.get(values, ()), waiting.get(values, ()),
            None if removals is None else Truncates(removals, is_new), since_ms, label,
            sizes[values],
        )
        for values in sorted(buckets.difference(nowhere), key=repr)
    ]  # fmt: skip
    return _Plan(
        tasks,
        frozenset(each.path for each in stored[2]),
        sum(each.count for each in stored[2]),
        kept,
        frozenset(path for each in nowhere for path in state.get(each, ())),
        (read_point(keyed.rows), read_point(keyed.state), read_point(keyed.changes)),
    )


def _removals(where: Target, paths: Sequence[ChangeRows]) -> pa.Table:
    return read_rows(file_io(where), paths, unmarked(where.schema))


# -- a bucket --------------------------------------------------------------------------


def merge_bucket(task: BucketMerge) -> MergedBucket:
    """Write a bucket's rows and state as they are after its changes; runs where the data is."""
    io, shape, events = file_io(task.rows), unmarked(task.rows.schema), unmarked(task.state.schema)
    before = KeyedRows(
        read_rows(io, task.row_files, shape), read_rows(io, task.state_files, events)
    )
    new = read_rows(io, task.changes, events)
    terms = task.terms
    after = applied(before, new, terms, task.removals, task.since_ms)
    order = [*terms.keys]
    made = _write(task.rows, task, after.rows, order, START_AT if terms.history else None)
    try:
        return MergedBucket(made, _write(task.state, task, after.state, order, SEQUENCE))
    except BaseException:
        delete_files(io, [each.path for each in made])
        raise


def _write(
    where: Target, task: BucketMerge, rows: pa.Table, keys: Sequence[str], last: str | None
) -> list[DataFileFacts]:
    """One file, by key, so that readers of a key need few of its row groups."""
    if not rows.num_rows:
        return []
    names = [
        *keys,
        *([last] if last and not pa.types.is_struct(rows.schema.field(last).type) else []),
    ]
    order = pc.sort_indices(rows, [(name, "ascending") for name in names])
    rows, out = rows.take(order), FileWriter(where, task.label)
    try:
        for part in _cut(rows):
            out.put(task.values, part)
        return out.close()
    except BaseException:
        out.discard()
        raise


def unmarked(schema: pa.Schema) -> pa.Schema:
    """A schema without marks, nested ones included, so that tables of it can be joined."""
    return pa.schema([pa.field(each.name, _unmarked(each.type)) for each in schema])


def _unmarked(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(each.name, _unmarked(each.type)) for each in kind])
    if pa.types.is_list(kind):
        return pa.list_(pa.field("element", _unmarked(kind.value_type)))
    if pa.types.is_map(kind):
        return pa.map_(_unmarked(kind.key_type), _unmarked(kind.item_type))
    return kind


def read_rows(io: FileIO, sources: Iterable[ChangeRows], schema: pa.Schema) -> pa.Table:
    """The rows of several sources, one after the other."""
    parts = [schema.empty_table()]
    for each in sources:
        if isinstance(each, bytes):
            found = pa.ipc.open_stream(each).read_all()
        else:
            with pq.ParquetFile(local_path(each) or io.new_input(each).open()) as file:
                found = file.read()
        parts.append(projected(found, schema).cast(schema))
    return pa.concat_tables(parts).combine_chunks()


# -- merging ---------------------------------------------------------------------------


def merge(keyed: KeyedTable, run: RunMerges | None = None, since_ms: int = 0) -> MergeReport:
    """Merge all changes that wait; `FilesGone` if other programs keep being first.

    What the state has seen before ``since_ms`` is forgotten.
    """
    for attempt in range(_ATTEMPTS):
        plan = _plan(keyed, since_ms)
        if not plan.merged:
            return MergeReport()
        found = list((run or _run_here)(plan.tasks))
        try:
            _commit(keyed, plan, found)
        except FilesGone:
            if attempt == _ATTEMPTS - 1:
                raise
            continue
        written = sum(each.count for one in found for each in one.rows)
        return MergeReport(len(plan.tasks), plan.count, written)
    raise AssertionError("the last attempt returns or raises")


def _run_here(tasks: Sequence[BucketMerge]) -> Iterator[MergedBucket]:
    return map(merge_bucket, tasks)


def _commit(keyed: KeyedTable, plan: _Plan, found: Sequence[MergedBucket]) -> None:
    rows_at, state_at, changes_at = plan.read_at
    rows = [facts for each in found for facts in each.rows]
    state = [facts for each in found for facts in each.state]
    old_rows = frozenset(path for each in plan.tasks for path in each.row_files)
    old_state = frozenset(path for each in plan.tasks for path in each.state_files)
    try:
        if plan.removals is not None:
            state += FileWriter(target(keyed.state), "removals").save([plan.removals])
            old_state |= plan.old_removals
        if state:
            _replace(keyed.state, TableChange(added=state, read_at=state_at))
    except BaseException:
        delete_files(keyed.rows.io, [each.path for each in rows])
        raise
    if rows or old_rows:
        _replace(keyed.rows, TableChange(added=rows, removed=old_rows, read_at=rows_at))
    if old_state:  # what it says is in the rows only now
        _replace(keyed.state, TableChange(removed=old_state, read_at=state_at))
    _replace(keyed.changes, TableChange(removed=plan.merged, read_at=changes_at))


@dataclass(frozen=True, slots=True)
class _Replacing:
    """What a merge leaves in a table: that rows before it are others now."""

    def moved(self, table: Table) -> Mapping[str, str]:
        return {REPLACED: str(table.metadata.next_sequence_number())}


def _replace(table: Table, change: TableChange) -> None:
    work = TableCommit(table, _Replacing(), change)
    apply(table, work.prepare, work.commit_id, work.new_files)
