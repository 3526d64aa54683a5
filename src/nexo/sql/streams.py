"""One stream as a query sees it: what a snapshot of its table holds, then the hot log from there.

The table is read first and the broker asked after it, so that both fit together: the log begins
where the snapshot ends, and each record is seen once.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from nexo.errors import Unavailable
from nexo.hot_log import HotLog
from nexo.lake.catalog import Lake, StreamId
from nexo.lake.offsets import offsets_of
from nexo.lake.rows import ROWS, chunked, rows
from nexo.lake.stored import StoredTable, find
from nexo.lake.typed import parsed, terms_of
from nexo.protocol import stream as wire

_TRIES = 5
SPILL_BYTES = 256 * 1024**2
"""Hot records beyond this are kept in a temporary file instead of memory."""


@dataclass(frozen=True, slots=True)
class Seen:
    """A stream at one moment: its table's snapshot, and the ranges of the log that follow it."""

    info: wire.StreamInfo
    table: StoredTable | None
    ranges: tuple[tuple[int, int], ...]
    """By partition: from where up to before where."""


def look(broker: HotLog, lake: Lake | None, name: str) -> Seen:
    """A stream now."""
    for _ in range(_TRIES):
        created_ms = broker.describe(name).created_ms
        table = None if lake is None else find(lake, StreamId(name, created_ms))
        info = broker.describe(name)
        offsets = {} if table is None else offsets_of(table.properties)
        if info.created_ms == created_ms and not _is_behind(info, offsets):
            return Seen(info, table, tuple(_ranges(info, offsets, lake is None)))
    raise Unavailable(f"stream {name!r} changes faster than it can be read: try again")


def _is_behind(info: wire.StreamInfo, offsets: dict[int, int]) -> bool:
    """Whether the log has dropped records that this snapshot lacks: a newer one has them."""
    return any(
        number in offsets and part.hot_offset > offsets[number]
        for number, part in enumerate(info.partitions)
    )


def _ranges(
    info: wire.StreamInfo, offsets: dict[int, int], from_broker: bool
) -> Iterator[tuple[int, int]]:
    for number, part in enumerate(info.partitions):
        start = part.start_offset if from_broker else part.hot_offset
        first = max(start, offsets.get(number, 0))
        yield first, max(part.stable_offset, first)


def hot_rows(broker: HotLog, seen: Seen) -> pa.Table:
    """The records of the log, with the typed columns of the table."""
    terms = None if seen.table is None else terms_of(seen.table.properties, seen.table.names)
    found = list[pa.Table]()
    with _Spill() as spill:
        for table in parsed(chunked(_batches(broker, seen)), terms):
            found.append(table)
            if spill.writer is not None or sum(each.nbytes for each in found) > SPILL_BYTES:
                spill.write(found)
        return spill.read() if spill.writer is not None else _together(found)


def _together(found: list[pa.Table]) -> pa.Table:
    return pa.concat_tables(found) if found else ROWS.empty_table()


def _batches(broker: HotLog, seen: Seen) -> Iterator[pa.RecordBatch]:
    name, created_ms = seen.info.name, seen.info.created_ms
    for partition, (first, end) in enumerate(seen.ranges):
        for batch in broker.read(name, partition, first, end, created_ms):
            yield rows(batch, partition, first, end)


class _Spill:
    """Rows on disk, mapped into memory to be read; the file goes with the last who reads it."""

    def __init__(self) -> None:
        self.writer: pa.ipc.RecordBatchFileWriter | None = None
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the block

    def __enter__(self) -> _Spill:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def write(self, found: list[pa.Table]) -> None:
        """Write tables down and forget them."""
        for table in found:
            if self.writer is None:
                self.writer = pa.ipc.new_file(self._file, table.schema)
            self.writer.write_table(table)
        found.clear()

    def read(self) -> pa.Table:
        """Everything written."""
        assert self.writer is not None
        self.writer.close()
        self._file.flush()
        with pa.memory_map(f"/proc/self/fd/{self._file.fileno()}") as mapped:
            return pa.ipc.open_file(mapped).read_all()
