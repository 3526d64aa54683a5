"""Streams taken into the lake without Spark, as its tasks do it."""

from __future__ import annotations

from nexo.hot_log import HotLog
from nexo.lake.catalog import Lake
from nexo.lake.files import FileWriter, target
from nexo.lake.names import file_label
from nexo.lake.once import WrittenRange, commit
from nexo.lake.own_columns import ROWS
from nexo.lake.plan import BatchLimits, planned_ranges
from nexo.lake.rows import rows
from nexo.lake.tables import StreamId, offsets_of
from nexo.protocol import stream as wire


def take(url: str, lake: Lake, name: str) -> None:
    """Everything of a stream that is not in its table yet."""
    with HotLog(url) as broker:
        info = broker.describe(name)
        table = lake.ensure(StreamId(name, info.created_ms), ROWS)
        taken = []
        for step in planned_ranges(
            name, offsets_of(table.properties), info.partitions, BatchLimits()
        ):
            writer = FileWriter(target(table), file_label(step.partition, step.first, step.end))
            found = broker.read(name, step.partition, step.first, step.end, info.created_ms)
            writer.write(rows(batch, step.partition, step.first, step.end) for batch in found)
            taken.append(WrittenRange(step.partition, step.after, step.end, writer.close()))
        commit(table, taken)
        asks = [
            wire.TieredTo(
                stream=name, partition=part.partition, offset=part.end, created_ms=info.created_ms
            )
            for part in taken
        ]
        assert not any(broker.tiered_all(asks))
