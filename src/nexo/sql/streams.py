"""One stream as a query sees it: a snapshot of its table, then the hot log as a DuckDB table.

The table is read before the broker is asked, so that the log continues where the snapshot ends and
each record is seen once.

``pyarrow.compute`` and ``pyarrow.dataset`` take longer to import than most queries to run. DuckDB
imports the latter for a registered Arrow table, so rows are copied into a DuckDB table instead,
from a stream of Arrow's C interface. Records without typed columns are copied as they are stored,
and DuckDB converts them.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING

import pyarrow as pa

from nexo.batch import Batch
from nexo.errors import NexoError, Unavailable
from nexo.hot_log import HotLog
from nexo.lake.arrow import as_stored
from nexo.lake.catalog import Lake
from nexo.lake.own_columns import ROWS
from nexo.lake.reading.stored import StoredTable, find
from nexo.lake.rows import chunked, partitions, rows, texts
from nexo.lake.tables import COLUMNS, StreamId, offsets_of
from nexo.protocol import stream as wire
from nexo.sql.dialect import quoted_name

if TYPE_CHECKING:
    import duckdb

SPILL_BYTES = 256 * 1024**2
"""Hot records beyond this are kept in a temporary file instead of memory."""
_AS_ROWS = "select * replace (nullif(headers, '') as headers, value_type::integer as value_type)"
_TRIES = 5


@dataclass(frozen=True, slots=True)
class SeenStream:
    """A stream at one moment: its table's snapshot, and the ranges of the log that follow it."""

    info: wire.StreamInfo
    table: StoredTable | None
    ranges: tuple[tuple[int, int], ...]
    """By partition: the first offset, and one past the last."""


def look(broker: HotLog, lake: Lake | None, name: str) -> SeenStream:
    for _ in range(_TRIES):
        before = broker.describe(name)
        table = None if lake is None else find(lake, StreamId(name, before.created_ms))
        if (found := _seen(before, table, broker.describe(name), lake is None)) is not None:
            return found
    raise Unavailable(f"stream {name!r} changes faster than it can be read: try again")


def look_at(broker: HotLog, lake: Lake | None, names: Sequence[str]) -> dict[str, SeenStream]:
    """`look` at several: the broker is asked for all together, unless one changes meanwhile."""
    before = broker.describe_all(names)
    tables = {
        name: None if lake is None else find(lake, StreamId(name, info.created_ms))
        for name, info in before.items()
        if not isinstance(info, NexoError)
    }
    after = broker.describe_all(tables)
    found = {}
    for name in names:
        first, last = before[name], after.get(name)
        if not isinstance(first, NexoError) and isinstance(last, wire.StreamInfo):
            seen = _seen(first, tables[name], last, lake is None)
            if seen is not None:
                found[name] = seen
                continue
        found[name] = look(broker, lake, name)
    return found


def _seen(
    before: wire.StreamInfo, table: StoredTable | None, after: wire.StreamInfo, from_broker: bool
) -> SeenStream | None:
    """A stream as it was described before its table was read, and after; None if it has changed."""
    offsets = {} if table is None else offsets_of(table.properties)
    if after.created_ms != before.created_ms or _is_behind(after, offsets):
        return None
    held = {} if table is None else table.offsets
    return SeenStream(after, table, tuple(_ranges(after, held, from_broker)))


def _is_behind(info: wire.StreamInfo, offsets: dict[int, int]) -> bool:
    """Whether the log has dropped records that this snapshot lacks; a newer one has them."""
    return any(
        number in offsets and part.hot_offset > offsets[number]
        for number, part in enumerate(info.partitions)
    )


def _ranges(
    info: wire.StreamInfo, offsets: Mapping[int, int], from_broker: bool
) -> Iterator[tuple[int, int]]:
    for number, part in enumerate(info.partitions):
        start = part.start_offset if from_broker else part.hot_offset
        first = max(start, offsets.get(number, 0))
        yield first, max(part.stable_offset, first)


# -- the hot log ------------------------------------------------------------------------


def make_hot_table(
    connection: duckdb.DuckDBPyConnection, name: str, broker: HotLog, seen: SeenStream
) -> None:
    """Make a table of the log's records, with the typed columns of the stream's table."""
    found = list[pa.Table]()
    with tempfile.TemporaryFile() as file:
        spill = _Spill(file)
        for table in _tables(broker, seen):
            found.append(table)
            if spill.writer is not None or sum(each.nbytes for each in found) > SPILL_BYTES:
                spill.write(found)
        if spill.writer is None:
            together = pa.concat_tables(found) if found else ROWS.empty_table()
            copy_table(connection, name, together, _AS_ROWS)
        else:
            spilled = f"{name}_spilled"
            connection.register(spilled, spill.read())
            source = quoted_name(spilled)
            connection.execute(f"create view {quoted_name(name)} as {_AS_ROWS} from {source}")


def copy_table(
    connection: duckdb.DuckDBPyConnection, name: str, table: pa.Table, select: str = "select *"
) -> None:
    """Copy an Arrow table into a DuckDB table, as ``select`` says."""
    source = f"{name}_source"
    connection.register(source, table.__arrow_c_stream__())  # can be read once
    connection.execute(
        f"create temp table {quoted_name(name)} as {select} from {quoted_name(source)}"
    )
    connection.unregister(source)


def _tables(broker: HotLog, seen: SeenStream) -> Iterator[pa.Table]:
    table = seen.table
    if table is None or COLUMNS not in table.properties:
        return chunked(_stored_rows(*each) for each in _batches(broker, seen))
    from nexo.lake.typed.columns import terms_of  # noqa: PLC0415 - few queries need it
    from nexo.lake.typed.values import parsed  # noqa: PLC0415 - few queries need it

    found = chunked(rows(*each) for each in _batches(broker, seen))
    return parsed(found, terms_of(table.properties, table.names))


def _batches(broker: HotLog, seen: SeenStream) -> Iterator[tuple[Batch, int, int, int]]:
    """The batches of the log, each with its partition and the range of wanted offsets."""
    name, created_ms = seen.info.name, seen.info.created_ms
    for partition, (first, end) in enumerate(seen.ranges):
        for batch in broker.read(name, partition, first, end, created_ms):
            yield batch, partition, first, end


def _stored_rows(batch: Batch, partition: int, first: int, end: int) -> pa.RecordBatch:
    """`rows`, except for types that DuckDB converts."""
    start, stop = batch.index_of(first), batch.index_of(end)
    found = as_stored(batch).slice(start, max(stop - start, 0))
    columns = dict(zip(found.schema.names, found.columns, strict=True))
    columns["headers"] = texts(columns["headers"])
    return pa.RecordBatch.from_pydict(
        {"partition": partitions(partition, found.num_rows), **columns}
    )


class _Spill:
    """Rows in a file, which is mapped into memory for reading and removed after the last reader."""

    def __init__(self, file: IO[bytes]) -> None:
        self.writer: pa.ipc.RecordBatchFileWriter | None = None
        self._file = file

    def write(self, found: list[pa.Table]) -> None:
        """Write tables to the file and empty the list."""
        for table in found:
            if self.writer is None:
                self.writer = pa.ipc.new_file(self._file, table.schema)
            self.writer.write_table(table)
        found.clear()

    def read(self) -> pa.Table:
        assert self.writer is not None
        self.writer.close()
        self._file.flush()
        with pa.memory_map(f"/proc/self/fd/{self._file.fileno()}") as mapped:
            return pa.ipc.open_file(mapped).read_all()
