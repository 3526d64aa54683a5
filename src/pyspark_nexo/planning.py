"""What a micro-batch takes: streams with new records, and up to which offset of each partition."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from nexo.errors import ConnectionLost, NexoError, Unauthenticated, Unavailable
from nexo.hot_log import HotLog
from nexo.lake.catalog import Lake
from nexo.lake.own_columns import ROWS
from nexo.lake.plan import BatchLimits, planned_ranges
from nexo.lake.progress import Tracker, now_ms
from nexo.lake.tables import StreamId, held_offsets
from nexo.lake.writing.layout import layout_of
from nexo.protocol import stream as wire
from pyspark_nexo.failures import SparkEnded
from pyspark_nexo.steps import StreamStep, behind, matches, replaced, unreported

if TYPE_CHECKING:
    from pyiceberg.table import Table

log = logging.getLogger("nexo.pipeline")

WantedPartition: TypeAlias = Callable[[str, int, float], bool]
"""Whether to take a stream now that is this many records and bytes behind."""
SLICE, SLICES = 100, 4
"""Streams that are written and committed together: so many, or as many as make so many slices."""
_FAILURES_IN_A_ROW = 3
"""From this many streams in a row whose table cannot be read, the catalog counts as failed."""

T = TypeVar("T")


@dataclass(slots=True)
class Planner:
    """Finds each stream's next step, and remembers its table."""

    lake: Lake
    tracker: Tracker
    refused: dict[str, NexoError] = field(default_factory=dict)
    """Streams that the last micro-batch could not take, and why."""
    tables: dict[str, Table] = field(default_factory=dict)
    """Tables as this pipeline last saw them: another may have committed since."""
    _unchanged: set[str] = field(default_factory=set)
    """Streams whose table nobody else had changed when the micro-batch began."""
    _limits: BatchLimits = field(default_factory=BatchLimits)
    _failures: int = 0
    """Streams in a row whose table could not be read."""

    def begin(self, limits: BatchLimits, streams: int) -> None:
        self.lake.keep(2 * streams)  # those beside them, too
        self._limits = limits
        self.refused = {}
        self._unchanged = self.lake.unchanged(self.tables)

    def refuse(self, name: str, error: Exception) -> None:
        """Note an error of one stream; raises an error that concerns all of them."""
        self.tables.pop(name, None)
        if isinstance(error, ConnectionLost | Unauthenticated | SparkEnded):
            raise error
        if not isinstance(error, NexoError):
            log.error("stream %r cannot be taken", name, exc_info=error)
            error = NexoError(f"{type(error).__name__}: {error}")
        self.refused[name] = error
        self.tracker.refused(name, error.message)

    def steps(
        self, broker: HotLog, targets: Mapping[str, list[int] | None], wanted: WantedPartition
    ) -> Iterator[StreamStep]:
        """The next step of each stream with new records, asked for as late as possible."""
        self._failures = 0
        for names in chunks(targets, slice_of(len(targets))):
            for info, table, asked_ms in self._read(broker, names, wanted):
                try:
                    step = self._step(broker, info, table, targets[info.name], asked_ms)
                except Exception as error:  # of this stream alone
                    self.refuse(info.name, error)
                else:
                    if step is not None:
                        yield step

    def _read(
        self, broker: HotLog, names: Sequence[str], wanted: WantedPartition
    ) -> Iterator[tuple[wire.StreamInfo, Table, int]]:
        """Streams to take now: what the broker says of them, their tables, when it was asked."""
        unread = list[wire.StreamInfo]()
        asked_ms = now_ms()
        for name, info in broker.describe_all(names).items():
            try:
                is_due, known = self._look(broker, info, asked_ms, wanted)
            except Exception as error:  # of this stream alone
                self.refuse(name, error)
                continue
            assert isinstance(info, wire.StreamInfo)
            if is_due and known is not None:
                yield info, known, asked_ms
            elif is_due:
                unread.append(info)
        known_ms = {info.name: info.created_ms for info in unread}
        read = self._load(unread)
        # The table is read first, so that it cannot be ahead of what the broker reports.
        asked_ms = now_ms()
        for name, info in broker.describe_all(read).items():
            if (reason := replaced(info, known_ms[name])) is not None:
                self.refuse(name, reason)
            elif isinstance(info, wire.StreamInfo):
                yield info, self.tables[name], asked_ms

    def _look(
        self,
        broker: HotLog,
        info: wire.StreamInfo | NexoError,
        asked_ms: int,
        wanted: WantedPartition,
    ) -> tuple[bool, Table | None]:
        """Whether to take a stream now, and its table if nobody else has changed it."""
        if isinstance(info, NexoError):
            raise info
        table = self.tables.get(info.name)
        if table is None or not matches(table, info) or self._is_others(info.name):
            return True, None
        rows, size_bytes = behind(table, info.partitions)
        if rows and wanted(info.name, rows, size_bytes):
            return True, table if info.name in self._unchanged else None
        self.tracker.looked(info.name, table, rows, asked_ms)
        self._report(broker, info, table)
        return False, table

    def _is_others(self, name: str) -> bool:
        """Whether another program may have changed a table, perhaps rolled it back.

        Another catalog than a folder's is asked only once there are new records.
        """
        return not self.lake.settings.catalog and name not in self._unchanged

    def _load(self, infos: Sequence[wire.StreamInfo]) -> list[str]:
        """Read streams' tables, made if missing; raises if the catalog fails for several.

        A stream without records gets no table. Returns the streams whose table was read.
        """
        streams = [StreamId(info.name, info.created_ms) for info in infos]
        absent = self.lake.absent(streams)
        empty = {info.name for info in infos if _is_empty(info)} & absent
        wanted = [each for each in streams if each.name not in empty]
        found = list[str]()
        for name, table in self.lake.ensure_all(wanted, ROWS).items():
            if not isinstance(table, Exception):
                self.tables[name], self._failures = table, 0
                found.append(name)
                continue
            self._failures += isinstance(table, Unavailable)
            if self._failures >= _FAILURES_IN_A_ROW:
                raise table
            self.refuse(name, table)
        return found

    def _step(
        self,
        broker: HotLog,
        info: wire.StreamInfo,
        table: Table,
        ends: list[int] | None,
        asked_ms: int,
    ) -> StreamStep | None:
        """What to take of each partition, below ``ends``; None if nothing is new."""
        offsets, parts = held_offsets(table), info.partitions
        self.tracker.looked(info.name, table, behind(table, parts)[0], asked_ms)
        if ends is not None and len(ends) > len(parts):  # it was created again
            ends = None
        elif ends is not None:  # of partitions that were added, everything is taken
            ends = [*ends, *(part.stable_offset for part in parts[len(ends) :])]
        layout_of(table)  # refuses a table that cannot be written
        found = planned_ranges(info.name, offsets, parts, self._limits, ends)
        self._report(broker, info, table)
        return StreamStep(info, table, found) if found else None

    def _report(self, broker: HotLog, info: wire.StreamInfo, table: Table) -> None:
        """Report to the broker what an earlier pipeline committed but did not report."""
        for error in broker.tiered_all(list(unreported(info, table))):
            if error is not None:
                self.refuse(info.name, error)


def _is_empty(info: wire.StreamInfo) -> bool:
    """Whether a stream has had no record that readers may see."""
    return all(part.stable_offset == 0 for part in info.partitions)


def slice_of(streams: int) -> int:
    """How many of so many streams are written and committed together."""
    return max(SLICE, math.ceil(streams / SLICES))


def chunks(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Lists of up to ``size`` items, each taken from ``items`` as late as possible."""
    left = iter(items)
    while found := list(islice(left, size)):
        yield found
