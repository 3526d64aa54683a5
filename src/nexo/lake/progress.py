"""What pipelines do, in files that others read: the dashboard, metrics, ``nexo pipeline status``.

Each pipeline keeps one JSON file, ``<lake folder>/pipelines/<host>-<pid>.json``, which it replaces
about once a second. It holds one `PipelineProgress`. Reading it needs neither Spark nor PyIceberg.
The tables, not these files, say what is in the lake: the files may be deleted at any time.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from msgspec import structs

from nexo.errors import NexoError
from nexo.lake.settings import this_host
from nexo.lake.tables import held_offsets, missing, newest_snapshot

if TYPE_CHECKING:
    from pyiceberg.table import Table

FOLDER = "pipelines"
STALE_MS = 120_000
"""A running pipeline that has not written for this long was killed, or hangs."""
_FORGET_MS = 86_400_000


class StreamProgress(msgspec.Struct, kw_only=True):
    """One stream, as its pipeline last saw it. Times are milliseconds since 1970."""

    stream: str
    table: str = ""
    records: int = 0
    """In the table, as are ``files`` and ``bytes``."""
    files: int = 0
    bytes: int = 0
    snapshot_id: str | None = None
    """As text, because JavaScript rounds numbers of this size."""
    committed_ms: int | None = None
    """When that snapshot was committed."""
    offsets: dict[str, int] = {}
    """By partition: everything below is in the table."""
    behind: int = 0
    """Records that readers may see and the table lacks, at ``checked_ms``."""
    checked_ms: int = 0
    fresh_ms: int | None = None
    """Everything published before is in the table; ``now - fresh_ms`` is how late the lake is."""
    missing: int = 0
    """Records that were lost to the table when another program rolled it back."""
    dead_letters: int = 0
    """Records whose value did not fit the typed columns, in all."""
    newest_records: int | None = None
    """In the table of the newest record per key; None if there is none."""
    batches: int = 0
    """Micro-batches that this pipeline committed, and the records in them."""
    taken: int = 0
    lost_races: int = 0
    """Micro-batches that another pipeline committed first."""
    last_taken: int = 0
    """Of the last micro-batch, as are the next two."""
    last_files: int = 0
    last_ms: float = 0.0
    error: str = ""
    """Why it could not be taken; empty after a success."""
    error_ms: int | None = None


class FlowProgress(msgspec.Struct, kw_only=True):
    """One flow of users' code, as its pipeline last saw it."""

    flow: str
    target: str
    kind: str
    """What it fills: a streaming table, a materialized view, a sink."""
    reads: list[str] = []
    """The streams and tables that its rows come from."""
    place: str = ""
    """Where it is defined: a file and a line."""
    state: str = "waiting"
    """``waiting``, ``running``, ``idle``, ``failed``, or ``held`` by a failure above it."""
    batches: int = 0
    rows: int = 0
    """Written by this pipeline, as are the next two."""
    dropped: int = 0
    """Rows that expectations kept out of the table."""
    broken: dict[str, int] = {}
    """Rows that broke each expectation."""
    last_rows: int = 0
    last_ms: float = 0.0
    committed_ms: int | None = None
    behind: int = 0
    """Records of streams, and commits of tables, that it has yet to read."""
    records: int = 0
    """In the table, as are ``files``, ``bytes`` and ``small_files``."""
    files: int = 0
    bytes: int = 0
    small_files: int = 0
    """Files that are to be merged."""
    waiting: int = 0
    """Changes that are kept beside the table, to be merged into its rows."""
    waiting_since_ms: int | None = None
    """When the oldest of them came."""
    error: str = ""
    """Why it does not go on; empty once it does."""
    error_ms: int | None = None


class TableDebt(msgspec.Struct, kw_only=True, frozen=True):
    """What is to be merged in a table."""

    table: str
    small_files: int = 0
    """Files that are to be merged, or brought into order, and their bytes."""
    small_bytes: int = 0
    behind_s: float = 0.0
    """How long that takes at the pace of the last rounds."""
    is_rising: bool = False
    """Whether it was less after the round before."""


class PipelineProgress(msgspec.Struct, kw_only=True):
    """One pipeline."""

    id: str
    host: str
    pid: int
    started_ms: int
    updated_ms: int
    running: bool = True
    """False after an orderly end; see `STALE_MS` for one that was killed."""
    every_ms: int | None = None
    """The pause between micro-batches; None for ``--once``."""
    fresh_every_ms: float | None = None
    """About how often each stream with new records is taken: ``every_ms``, or as long as a
    micro-batch of all of them takes. A record is in the lake after at most twice this time."""
    maintained_ms: int | None = None
    """When the tables were last merged, expired and swept."""
    error: str = ""
    """Why the last micro-batch failed; empty after a success."""
    error_ms: int | None = None
    streams: list[StreamProgress] = []
    flows: list[FlowProgress] = []
    debts: list[TableDebt] = []
    """Of each table, after the last round of maintenance."""

    def alive(self, now_ms: int) -> bool:
        """Whether it seems to be running."""
        return self.running and now_ms - self.updated_ms < STALE_MS


@dataclass(frozen=True, slots=True)
class MicroBatchResult:
    """What one micro-batch did to one stream; ``lost`` says why nothing was committed."""

    stream: str
    rows: int
    files: int
    seconds: float
    lost: str = ""


class Tracker:
    """Collects a pipeline's progress; `save` writes it to its file."""

    def __init__(self) -> None:
        host, pid, now = this_host(), os.getpid(), now_ms()
        self.pipeline = PipelineProgress(
            id=f"{host}-{pid}-{uuid.uuid4().hex[:6]}",
            host=host,
            pid=pid,
            started_ms=now,
            updated_ms=now,
        )
        self._streams: dict[str, StreamProgress] = {}
        self._saved_s = float("-inf")

    @contextmanager
    def running(self, lake_folder: Path, every_ms: int | None = None) -> Iterator[None]:
        """Show the pipeline as running during the block, and the error if one ends it."""
        self.pipeline.running, self.pipeline.every_ms = True, every_ms
        self.save(lake_folder)
        try:
            yield
        except NexoError as error:
            self.failed(error.message)
            raise
        finally:
            self.pipeline.running = False
            self.save(lake_folder)

    def of(self, stream: str) -> StreamProgress:
        """A stream's numbers, to be changed in place."""
        if stream not in self._streams:
            self._streams[stream] = StreamProgress(stream=stream)
            self.pipeline.streams = [self._streams[name] for name in sorted(self._streams)]
        return self._streams[stream]

    def looked(self, stream: str, table: Table, behind: int, at_ms: int) -> None:
        """``behind`` records were not in the table when the broker was asked at ``at_ms``."""
        found = self.of(stream)
        found.behind, found.checked_ms = behind, at_ms
        found.error, found.error_ms = "", None
        if not behind:
            found.fresh_ms = at_ms
        describe(found, table)

    def took(self, table: Table, batch: MicroBatchResult, *, complete: bool) -> None:
        """A micro-batch is in the table; ``complete`` if it took all that readers could see."""
        found = self.of(batch.stream)
        found.batches += 1
        found.taken += batch.rows
        found.behind = max(found.behind - batch.rows, 0)
        found.last_taken, found.last_files = batch.rows, batch.files
        found.last_ms = batch.seconds * 1000
        if complete:
            found.behind, found.fresh_ms = 0, found.checked_ms
        describe(found, table)

    def refused(self, stream: str, message: str) -> None:
        """One stream could not be taken; the others continue."""
        found = self.of(stream)
        found.error, found.error_ms = message, now_ms()

    def failed(self, message: str, streams: Iterable[str] = ()) -> None:
        """A micro-batch failed, of these streams if they are known."""
        self.pipeline.error, self.pipeline.error_ms = message, now_ms()
        for stream in streams:
            self.refused(stream, message)

    def went_well(self) -> None:
        """A micro-batch succeeded, so earlier errors are over."""
        self.pipeline.error, self.pipeline.error_ms = "", None

    def owes(self, debt: TableDebt) -> None:
        """A round of maintenance has left so much of a table to be merged."""
        known = {each.table: each for each in self.pipeline.debts}
        before = known.get(debt.table)
        is_rising = before is not None and debt.behind_s > before.behind_s
        known[debt.table] = structs.replace(debt, is_rising=is_rising)
        self.pipeline.debts = [known[table] for table in sorted(known)]

    def save(self, lake_folder: Path, at_most_every_s: float = 0.0) -> None:
        """Write the file, unless the last write was less than ``at_most_every_s`` ago."""
        now_s = time.monotonic()
        if now_s - self._saved_s < at_most_every_s:
            return
        folder = lake_folder / FOLDER
        self.pipeline.updated_ms = now_ms()
        # A full disk must not stop the pipeline: these numbers are only shown.
        with suppress(OSError):
            lake_folder.mkdir(mode=0o750, parents=True, exist_ok=True)
            folder.mkdir(exist_ok=True)
            if self._saved_s == float("-inf"):
                _forget_old(lake_folder, self.pipeline.updated_ms)
            path = folder / f"{self.pipeline.id}.json"
            aside = path.with_suffix(".tmp")
            aside.write_bytes(msgspec.json.encode(self.pipeline))
            aside.replace(path)
        self._saved_s = now_s


def describe(found: StreamProgress, table: Table) -> None:
    """Fill in what a table says about itself."""
    snapshot = newest_snapshot(table)
    found.table = ".".join(table.name())
    found.offsets = {str(number): offset for number, offset in held_offsets(table).items()}
    found.missing = sum(missing(table.properties).values())
    if snapshot is not None:
        found.snapshot_id, found.committed_ms = str(snapshot.snapshot_id), snapshot.timestamp_ms
    found.records = total(table, "total-records")
    found.files = total(table, "total-data-files")
    found.bytes = total(table, "total-files-size")


def total(table: Table, name: str) -> int:
    """A number of the newest snapshot's summary, 0 before the first."""
    snapshot = newest_snapshot(table)
    if snapshot is None or snapshot.summary is None:
        return 0
    return int(snapshot.summary.additional_properties.get(name, 0))


def _forget_old(lake_folder: Path, at_ms: int) -> None:
    for old in read_progress(lake_folder):
        if at_ms - old.updated_ms > _FORGET_MS:
            (lake_folder / FOLDER / f"{old.id}.json").unlink(missing_ok=True)


def read_progress(lake_folder: Path) -> list[PipelineProgress]:
    """Every pipeline known here, the one that wrote last first."""
    found = []
    for path in (lake_folder / FOLDER).glob("*.json"):
        try:
            found.append(msgspec.json.decode(path.read_bytes(), type=PipelineProgress))
        except (OSError, msgspec.DecodeError):  # removed since it was listed, or not ours
            continue
    return sorted(found, key=lambda each: -each.updated_ms)


def by_stream(pipelines: Iterable[PipelineProgress]) -> dict[str, StreamProgress]:
    """Each stream as the pipeline that looked at it last saw it."""
    found: dict[str, StreamProgress] = {}
    for pipeline in pipelines:
        for each in pipeline.streams:
            known = found.get(each.stream)
            if known is None or each.checked_ms > known.checked_ms:
                found[each.stream] = each
    return {stream: found[stream] for stream in sorted(found)}


def by_flow(pipelines: Iterable[PipelineProgress]) -> dict[str, FlowProgress]:
    """Each flow as the pipeline that wrote last saw it."""
    found: dict[str, FlowProgress] = {}
    for pipeline in sorted(pipelines, key=lambda each: each.updated_ms):
        found |= {each.flow: each for each in pipeline.flows}
    return {flow: found[flow] for flow in sorted(found)}


def by_table(pipelines: Iterable[PipelineProgress]) -> dict[str, TableDebt]:
    """What is due of each table, as the pipeline that wrote last saw it."""
    found: dict[str, TableDebt] = {}
    for pipeline in sorted(pipelines, key=lambda each: each.updated_ms):
        found |= {each.table: each for each in pipeline.debts}
    return found


def now_ms() -> int:
    return time.time_ns() // 1_000_000
