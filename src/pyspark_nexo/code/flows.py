"""One flow as it runs: a streaming query with a checkpoint, or a view that is made anew.

The checkpoint numbers a flow's batches, its table says which of them count. A checkpoint that is
gone would begin again from the start, so a table that knows another one refuses the flow.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nexo.errors import Conflict, NexoError
from nexo.lake.catalog import Lake
from nexo.lake.folder.swapping import CHECKPOINT, CHECKPOINTS, MADE_FOR, checkpoints_of
from nexo.lake.once import last_batches
from nexo.lake.progress import FlowProgress, now_ms, total
from nexo.lake.tables import newest_snapshot, table_name
from nexo.lake.user_tables import find_user_table, get_user_table
from pyspark_nexo.code.cdc import ChangesWriter
from pyspark_nexo.code.definitions import FlowDefinition, OutputDefinition, OutputKind
from pyspark_nexo.code.graph import FlowGraph, shape_of
from pyspark_nexo.code.merging import Merger
from pyspark_nexo.code.writers import AppendWriter, BatchOutcome, FlowWriter, ReplaceWriter
from pyspark_nexo.failures import plain, plain_errors
from pyspark_nexo.sessions import described
from pyspark_nexo.tiering import Probe, no_probe

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

INPUTS = "nexo.inputs"
"""A property of a view's table: what its inputs were when it was made."""
SMALL_BYTES = 32 * 1024**2


@dataclass(slots=True)
class FlowRun:
    """A flow, its progress, and its query if it has one."""

    flow: FlowDefinition
    output: OutputDefinition
    graph: FlowGraph
    probe: Probe = no_probe
    progress: FlowProgress = field(init=False)
    query: StreamingQuery | None = None
    merger: Merger | None = None
    """Of a flow of changes."""
    _seen_batch: int = -1
    """Of a sink, whose rows only Spark counts."""
    _begun: Table | None = None
    """The table as it was when the query began."""

    def __post_init__(self) -> None:
        self.progress = FlowProgress(
            flow=self.flow.name,
            target=self.flow.target,
            kind=self.output.kind.value,
            reads=self.graph.reads.get(self.flow.name, []),
            place=str(self.flow.place),
        )
        if self.flow.changes is not None:
            self.merger = Merger(self.lake, self.output, self.graph.catalog.spark)

    @property
    def is_streaming(self) -> bool:
        """Whether it has a query of its own, rather than being made anew."""
        return self.output.kind in (OutputKind.STREAMING, OutputKind.SINK)

    @property
    def checkpoint(self) -> Path:
        """Where Spark keeps how far it is."""
        table, target = (
            self._begun or find_user_table(self.lake, self.flow.target),
            self.flow.target,
        )
        if table is None:  # of a sink
            folder = self.lake.settings.folder.absolute() / CHECKPOINTS / table_name(target)
        else:
            folder = checkpoints_of(self.lake, table)
        return folder / table_name(self.flow.name)

    @property
    def lake(self) -> Lake:
        return self.graph.catalog.lake

    # -- a streaming flow ------------------------------------------------------------------

    def start(self, trigger: Mapping[str, Any]) -> None:
        """Start its query, from where its checkpoint is."""
        self._begun = None
        if self.output.kind == OutputKind.STREAMING:
            self._begun = get_user_table(self.lake, self.flow.target)
            self._check_checkpoint(self._begun)
        frame = self.graph.frame(self.flow)
        writing = frame.writeStream.queryName(self._query_name).trigger(**trigger)
        writing = writing.option("checkpointLocation", str(self.checkpoint))
        if self.output.kind == OutputKind.SINK:
            writing = writing.format(self.output.format).options(**dict(self.output.options))
        else:
            writing = writing.foreachBatch(self._take)
        with self.graph.settings(self.flow.conf), plain_errors():
            self.query = writing.start()
        self.progress.state = "running"
        if self.merger is not None:
            self.merger.look()

    @property
    def _query_name(self) -> str:
        """What Spark calls its query; another one may fill the table that is made anew."""
        name, is_anew = self.flow.name, MADE_FOR in self.output.properties
        return f"{name} into {self.flow.target}" if is_anew else name

    def _check_checkpoint(self, table: Table) -> None:
        """Refuse to begin from the start into a table that has this flow's rows."""
        known = checkpoint_id(self.checkpoint)
        prefix = _writer(self.flow.name, "")
        others = [
            each.removeprefix(prefix)
            for each in last_batches(table.properties)
            if each.startswith(prefix)
        ]
        if others and known not in others:
            raise Conflict(
                f"{self.flow.place}: the checkpoint of flow {self.flow.name!r} in "
                f"{self.checkpoint} is gone, and table {self.flow.target!r} has its rows: begun "
                "anew, it would append its whole history again; put the checkpoint back, or make "
                f"the table anew with --full {self.flow.target}"
            )

    def _take(self, frame: DataFrame, number: int) -> None:
        """One batch, called by Spark."""
        started_s = time.monotonic()
        known = checkpoint_id(self.checkpoint)
        self.probe("before the batch")
        found = self._batch_writer().write(frame, _writer(self.flow.name, known), number)
        self.probe("after the commit")
        self._took(found, started_s)

    def _batch_writer(self) -> FlowWriter:
        if self.merger is not None:
            layout = shape_of(self.output)
            return ChangesWriter(self.lake, self.output, self.flow, layout, self.merger, self._said)
        return self._appending()

    @property
    def _said(self) -> str | None:
        """What the table said of its checkpoints when the query began."""
        return None if self._begun is None else self._begun.properties.get(CHECKPOINT, "")

    def _appending(self) -> AppendWriter:
        flow = self.flow
        return AppendWriter(self.lake, flow.target, flow.name, flow.expectations, self._said)

    def _took(self, found: BatchOutcome, started_s: float) -> None:
        seen = self.progress
        seen.last_ms = (time.monotonic() - started_s) * 1000
        if found.table is not None:
            describe(seen, found.table)
        if not found.is_new and not found.dropped:
            return
        seen.batches += 1
        seen.rows += found.rows if found.is_new else 0
        seen.last_rows, seen.dropped = found.rows, seen.dropped + found.dropped
        for name, count in found.broken.items():
            seen.broken[name] = seen.broken.get(name, 0) + count
        seen.error, seen.error_ms = "", None

    def failure(self) -> NexoError | None:
        """Why its query ended; None if it goes on, or ended well."""
        query = self.query
        found = None if query is None or query.isActive else query.exception()
        return None if found is None else plain(str(found))

    def look(self) -> None:
        """Note how far behind the query is, and what waits to be merged."""
        if self.merger is not None:
            waits = self.merger.found
            self.progress.waiting, self.progress.waiting_since_ms = waits.count, waits.since_ms
        last = None if self.query is None else self.query.lastProgress
        if last is None:
            return
        self.progress.behind = sum(_behind(each) for each in last["sources"])
        if self.output.kind == OutputKind.SINK and last["batchId"] != self._seen_batch:
            self._seen_batch = last["batchId"]
            self.progress.batches += 1
            self.progress.last_rows = last["numInputRows"]
            self.progress.rows += last["numInputRows"]

    def stop(self) -> None:
        """End its query, if it has one."""
        if self.query is not None:
            with plain_errors():
                self.query.stop()
            self.query = None

    def merge_old(self) -> None:
        """Begin to merge changes that have waited for long; raises why the last time failed."""
        if self.merger is not None and self.query is not None:
            self.merger.merge_old()

    def merge(self) -> None:
        """Merge all changes that wait."""
        if self.merger is not None:
            self.merger.wait()
            with plain_errors():
                self.merger.merge()

    # -- a view ----------------------------------------------------------------------------

    def refresh(self) -> bool:
        """Make a view's rows anew, unless nothing that it reads has changed."""
        table = get_user_table(self.lake, self.flow.target)
        inputs = self.graph.catalog.state(self.progress.reads)
        if inputs is not None:
            inputs["code"] = self.graph.definitions.digest
        seen = table.properties.get(INPUTS)
        if inputs is not None and seen == _inputs_text(inputs):
            self.progress.state = "idle"
            return False
        started_s = time.monotonic()
        self.progress.state = "running"
        properties = {} if inputs is None else {INPUTS: _inputs_text(inputs)}
        writer = _writer(self.flow.name, "view")
        number = last_batches(table.properties).get(writer, -1) + 1
        frame = self.graph.frame(self.flow)
        self.probe("before the batch")
        with described(frame.sparkSession.sparkContext, f"Nexo: view {self.flow.target}"):
            found = ReplaceWriter(self._appending(), properties).write(frame, writer, number)
        self.probe("after the commit")
        self._took(found, started_s)
        self.progress.state = "idle"
        return True

    def failed(self, error: NexoError) -> None:
        """Note why it does not go on."""
        self.progress.state = "failed"
        message = error.message
        if not message.startswith(self.flow.place.file):
            message = f"{self.flow.place}: {message}"
        self.progress.error, self.progress.error_ms = message, now_ms()


def _writer(flow: str, checkpoint: str | None) -> str:
    return f"flow {flow} {checkpoint or ''}"


def _inputs_text(inputs: Mapping[str, str]) -> str:
    return json.dumps(dict(inputs), sort_keys=True)


def checkpoint_id(folder: Path) -> str | None:
    """The id that Spark gave a checkpoint; None if there is none."""
    try:
        found: dict[str, str] = json.loads((folder / "metadata").read_text())
    except (OSError, ValueError):
        return None
    return found.get("id")


def describe(found: FlowProgress, table: Table) -> None:
    """What a table says of itself."""
    snapshot = newest_snapshot(table)
    found.records = total(table, "total-records")
    found.files = total(table, "total-data-files")
    found.bytes = total(table, "total-files-size")
    if snapshot is not None:
        found.committed_ms = snapshot.timestamp_ms
    mean = found.bytes / found.files if found.files else 0
    found.small_files = found.files if mean < SMALL_BYTES and found.files > 1 else 0


def _behind(source: Mapping[str, Any]) -> int:
    """Records of a stream, or commits of a table, that a query has yet to read."""
    end, latest = _offsets(source.get("endOffset")), _offsets(source.get("latestOffset"))
    names = [name for name in latest if name == "position" or name.isdigit()]
    return sum(max(int(latest[name]) - int(end.get(name, 0)), 0) for name in names)


def _offsets(text: Any) -> dict[str, Any]:
    try:
        found = json.loads(text) if isinstance(text, str) else text
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
