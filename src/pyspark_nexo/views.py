"""Streams as SQL views over the lake and the hot log, each record once (SPEC I5).

`nexo.sql.views` describes them. A stream's view is the union of its table's files and the hot log
from exactly the offsets at which the table's snapshot ends, up to the log's end when the view is
first used: Spark keeps its plan. To see later records, register the views again. Both parts have
the typed columns: records of the log are parsed as they are read.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import reduce
from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as f

from nexo.hot_log import HotLog
from nexo.lake.catalog import Lake
from nexo.lake.own_columns import ROWS
from nexo.lake.tables import DEAD_LETTERS, NEWEST, StreamId, derived_view, held_offsets, table_name
from nexo.lake.typed.columns import parser_of
from nexo.lake.typed.formats import format_text
from nexo.protocol import stream as wire
from nexo.sql.views import (
    COLUMNS,
    GROUPS,
    MESSAGE,
    MESSAGES,
    MOST_STREAMS,
    OFFSETS,
    SHOWN_AS_TEXT,
    check_moment,
    group_rows,
    offset_rows,
)
from pyspark_nexo.lake_frames import lake_frame
from pyspark_nexo.types import spark_schema

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyspark.sql import Column, DataFrame, SparkSession

_log = logging.getLogger("pyspark_nexo")
_MICROSECOND = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class StreamViews:
    """Makes views of one server's streams and their lake; ``as_of`` leaves out what came later."""

    spark: SparkSession
    lake: Lake
    url: str | None = None
    as_of: datetime | None = None

    def register(self, streams: Sequence[str] | None = None) -> list[str]:
        """Make every view, of these streams or the first `MOST_STREAMS`; returns their names.

        ``stream_messages`` covers all streams, so with more of them there is no such view.
        """
        with HotLog(self.url) as broker:
            every = list(streams or broker.names())
            names = every if streams else every[:MOST_STREAMS]
            infos = [broker.describe(name) for name in names]
            frames = {info.name: self.stream(info) for info in infos}
            taken = {table_name(name) for name in frames}
            extra = [
                view for info in infos for view in self._derived(info, frames[info.name], taken)
            ]
            self._rows(OFFSETS, offset_rows(broker, every)).createOrReplaceTempView(OFFSETS)
            self._rows(GROUPS, group_rows(broker, every)).createOrReplaceTempView(GROUPS)
        for name, frame in frames.items():
            frame.createOrReplaceTempView(table_name(name))
        made = [OFFSETS, GROUPS, *(table_name(name) for name in frames), *extra]
        if len(names) < len(every):
            self.spark.catalog.dropTempView(MESSAGES)
            _log.warning(
                "only the first %d streams have views, and there is no %s: name those you need",
                len(names),
                MESSAGES,
            )
            return made
        self._messages(frames).createOrReplaceTempView(MESSAGES)
        return [MESSAGES, *made]

    def _rows(self, view: str, rows: Iterator[tuple[object, ...]]) -> DataFrame:
        return self.spark.createDataFrame(list(rows), spark_schema(COLUMNS[view]))

    def stream(self, info: wire.StreamInfo) -> DataFrame:
        """One stream: a snapshot of its table, then the hot log from there on."""
        table = self.lake.known(StreamId(info.name, info.created_ms))
        frame = self._hot(info, table)
        if table is not None:
            frame = lake_frame(self.spark, table).unionByName(frame, allowMissingColumns=True)
        return self._as_of(frame)

    def _as_of(self, frame: DataFrame) -> DataFrame:
        return frame if self.as_of is None else frame.where(f.col("timestamp") <= f.lit(self.as_of))

    def _derived(
        self, info: wire.StreamInfo, frame: DataFrame, taken: Container[str]
    ) -> Iterator[str]:
        """Views of a stream's derived tables: newest records per key, and dead letters."""
        stream = StreamId(info.name, info.created_ms)
        for kind in (NEWEST, DEAD_LETTERS):
            table = self.lake.known(stream, kind)
            if table is not None:
                name = derived_view(info.name, kind, taken)
                if kind == NEWEST and self.as_of is not None:
                    found = _newest(frame)  # the table has only the present ones
                else:
                    found = self._as_of(lake_frame(self.spark, table))
                found.createOrReplaceTempView(name)
                yield name

    def _hot(self, info: wire.StreamInfo, table: Table | None) -> DataFrame:
        options = {"stream": info.name}
        if table is not None and (offsets := held_offsets(table)):
            starts = {
                str(number): max(part.hot_offset, offsets.get(number, 0))
                for number, part in enumerate(info.partitions)
            }
            options["startingOffsets"] = json.dumps(starts)
        if table is not None and (terms := parser_of(table)) and terms.columns:
            typed = {terms.names[each.field_id]: [each.source, each.kind] for each in terms.columns}
            options |= {"typed": json.dumps(typed), "permissive": str(terms.permissive).lower()}
            options["valueFormat"] = format_text(terms.format)
        if self.as_of is not None:
            options["endingTimestamp"] = (self.as_of + _MICROSECOND).astimezone(UTC).isoformat()
        if self.url:
            options["url"] = self.url
        return self.spark.read.format("nexo").options(**options).load()

    def _messages(self, frames: dict[str, DataFrame]) -> DataFrame:
        def message(topic: str, frame: DataFrame) -> DataFrame:
            return frame.select(f.lit(topic).alias("topic"), *map(_shown, MESSAGE))

        if not frames:
            return self._rows(MESSAGES, iter(()))
        parts = [message(topic, frame) for topic, frame in frames.items()]
        return reduce(lambda left, right: left.unionAll(right), parts)


def register_views(
    spark: SparkSession,
    lake: Lake,
    url: str | None = None,
    *,
    streams: Sequence[str] | None = None,
    as_of: datetime | None = None,
) -> list[str]:
    """Make the views that `nexo.sql.views` describes; returns their names."""
    check_moment(as_of)
    return StreamViews(spark, lake, url, as_of).register(streams)


def _shown(name: str) -> Column:
    """A column as ``stream_messages`` has it."""
    if name not in SHOWN_AS_TEXT:
        return f.col(name)
    return f.expr(f"if(is_valid_utf8({name}), cast({name} as string), base64({name}))").alias(name)


def _newest(frame: DataFrame) -> DataFrame:
    """The newest record of each key without tombstones, and every record without a key."""
    later = [f.col(name).desc() for name in ("timestamp", "offset", "partition")]
    rank = f.row_number().over(Window.partitionBy("key").orderBy(*later))
    kept = f.expr("key is null or (rank_of_key = 1 and value is not null)")
    return frame.select(*ROWS.names, rank.alias("rank_of_key")).where(kept).select(*ROWS.names)
