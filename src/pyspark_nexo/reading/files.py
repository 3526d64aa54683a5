"""The lake's part of a stream, read by Spark's tasks from its files; the rest from the broker.

The border is what the table held when the query was planned. A task that cannot read a file, as
its machine does not reach the lake or somebody merged the file meanwhile, asks the broker for its
range instead, which has the same records.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from nexo.errors import ConfigError, Forbidden, NexoError
from nexo.hot_log import HotLog
from nexo.lake.catalog import Lake
from nexo.lake.files import Target, file_io, place_of
from nexo.lake.own_columns import ROWS
from nexo.lake.paths import local_path
from nexo.lake.reading.ordered import SourceFile, rows_in_order
from nexo.lake.reading.ranges import FileRange, file_ranges
from nexo.lake.settings import LakeSettings, servers_lake
from nexo.lake.tables import held_offsets
from pyspark_nexo.reading.origins import BrokerOrigin, RecordOrigin
from pyspark_nexo.reading.ranges import ReadRange, ReadTask
from pyspark_nexo.steps import matches

if TYPE_CHECKING:
    from pyiceberg.table import Table

    from nexo.protocol.stream import StreamInfo

log = logging.getLogger("nexo.spark")

LEAST_ROWS = 200_000
"""Opening the lake costs more than fewer records do."""


class FileTask(ReadTask):
    """A range that one Spark task reads from files."""

    def __init__(
        self, part: ReadRange, origin: RecordOrigin, where: Target, files: Sequence[SourceFile]
    ) -> None:
        super().__init__(part, origin)
        self.where, self.files = where, files

    def tables(self, columns: Sequence[str] = ROWS.names) -> Iterator[pa.Table]:
        at = self.part.first
        try:
            for rows in self._stored(columns):
                at = rows.column("offset")[-1].as_py() + 1
                yield rows
        except OSError as error:
            log.info("%s; partition %d from %d on is the broker's", error, self.part.partition, at)
            yield from ReadTask(replace(self.part, first=at), self.origin).tables()

    def _stored(self, columns: Sequence[str]) -> Iterator[pa.Table]:
        wanted = pa.schema([each for each in ROWS if each.name in {*columns, "offset"}])
        io = None if local_path(self.where.location) else file_io(self.where)
        part = self.part
        return rows_in_order(io, self.files, part.partition, wanted, part.first, part.end)


@dataclass(frozen=True, slots=True)
class _Stored:
    """What the lake holds of a stream."""

    where: Target
    files: Sequence[FileRange]
    ends: Mapping[int, int]
    """By partition: files have everything below."""

    def tasks(self, part: ReadRange, origin: RecordOrigin) -> Iterator[ReadTask]:
        """The tasks of a range, on both sides of the border."""
        border = min(max(self.ends.get(part.partition, 0), part.first), part.end)
        if border > part.first:
            below = replace(part, end=border)
            yield FileTask(below, origin, self.where, self._of(below))
        if border < part.end:
            yield ReadTask(replace(part, first=border), origin)

    def _of(self, part: ReadRange) -> list[SourceFile]:
        """The files that may have records of a range."""
        return [
            each.source
            for each in self.files
            if each.may_hold(part.partition)
            and (
                each.offsets is None
                or (each.offsets[0] < part.end and each.offsets[1] >= part.first)
            )
        ]


def tasks(
    origin: RecordOrigin, parts: Sequence[ReadRange], folder: str | None = None
) -> list[ReadTask]:
    """The tasks that read some ranges; ``folder`` is where the lake is, if not the server's."""
    stored = _stored(origin, parts, folder)
    if stored is None:
        return [ReadTask(part, origin) for part in parts]
    return [task for part in parts for task in stored.tasks(part, origin)]


def _stored(origin: RecordOrigin, parts: Sequence[ReadRange], folder: str | None) -> _Stored | None:
    """What the lake has of a stream; None if it is not worth a look, or not to be had."""
    if not isinstance(origin, BrokerOrigin):
        return None
    if sum(part.end - part.first for part in parts) < LEAST_ROWS:
        return None
    lake = lake_of(origin.url, folder)
    if lake is None:
        return None
    try:
        return _found(Lake(lake), origin)
    except NexoError as error:
        log.info("the broker is asked for all of stream %r: %s", origin.stream, error.message)
        return None


def _found(lake: Lake, origin: BrokerOrigin) -> _Stored | None:
    table = lake.find(origin.stream)
    with HotLog(origin.url) as broker:
        broker.check_readable(origin.stream)
        info = broker.describe(origin.stream)  # after the table, which is not ahead of it then
    if table is None or not matches(table, info):
        return None
    return _Stored(place_of(table), file_ranges(table), _ends(table, info))


def _ends(table: Table, info: StreamInfo) -> dict[int, int]:
    """Of a stream that compacts, the lake has records that readers of the log no longer get."""
    held = held_offsets(table)
    if "compact" not in info.options.get("cleanup", ""):
        return held
    return {
        number: min(held.get(number, 0), part.hot_offset)
        for number, part in enumerate(info.partitions)
    }


def lake_of(url: str | None, folder: str | None = None) -> LakeSettings | None:
    """The lake in a folder, or the server's if this machine reaches it."""
    return _servers(url) if folder is None else LakeSettings(Path(folder))


@lru_cache(maxsize=100)
def _servers(url: str | None) -> LakeSettings | None:
    try:
        with HotLog(url) as broker:
            return servers_lake(broker.status())
    except (ConfigError, Forbidden):
        return None
