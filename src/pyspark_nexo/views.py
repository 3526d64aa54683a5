"""Streams as SQL views over the lake and the hot log, each record once (SPEC I5).

===================== ========================================================================
view                  columns
===================== ========================================================================
stream_messages       topic, partition, offset, key, value, headers, timestamp
stream_offsets        group_id, topic, partition, offset, metadata, committed_at
stream_groups         group_id, kind, topics, generation, leader, members, assignment
<stream>              partition, offset, timestamp, key, value, headers, value_type, typed columns
<stream>_latest       the newest record per key, of streams that compact
<stream>_dead_letters records whose value does not fit the typed columns, with the reason
===================== ========================================================================

A stream's view joins its table's files with the hot log from exactly the offsets that its table's
snapshot ends at, up to the log's end when the view is first used: Spark keeps what it planned. To
see what came later, register the views again.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import reduce
from itertools import islice
from typing import TYPE_CHECKING

from nexo.lake import dead_letters, latest
from nexo.lake.catalog import Lake, table_name
from nexo.lake.commit import offsets_of
from nexo.protocol import stream as wire
from pyspark_nexo.broker import StreamBroker
from pyspark_nexo.lake_frames import lake_frame

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# ruff: noqa: PLC0415 - pyspark takes a second to import

MOST_STREAMS = 200
"""How many streams ``stream_messages`` covers unless they are named: a plan has its limits."""

_MICROSECOND = timedelta(microseconds=1)

_MESSAGES = "topic string, partition int, offset bigint, key string, value string, headers string, timestamp timestamp"  # noqa: E501
_OFFSETS = "group_id string, topic string, partition int, offset bigint, metadata string, committed_at timestamp"  # noqa: E501
_GROUPS = "group_id string, kind string, topics string, generation int, leader string, members string, assignment string"  # noqa: E501


@dataclass(frozen=True, slots=True)
class Views:
    """Makes views of one server's streams and their lake; ``as_of`` leaves out what came later."""

    spark: SparkSession
    lake: Lake
    url: str | None = None
    as_of: datetime | None = None

    def register(self, streams: Sequence[str] | None = None) -> list[str]:
        """Make every view, of these streams or the first `MOST_STREAMS`; returns their names."""
        with StreamBroker(self.url) as broker:
            names = list(streams or islice(broker.names(), MOST_STREAMS))
            infos = [broker.describe(name) for name in names]
            frames = {info.name: self.stream(info) for info in infos}
            extra = [name for info in infos for name in self._derived(info.name)]
            self._view("stream_offsets", _OFFSETS, list(_offsets(broker, infos)))
            self._view("stream_groups", _GROUPS, list(_groups(broker, infos)))
        for name, frame in frames.items():
            frame.createOrReplaceTempView(table_name(name))
        self._messages(frames).createOrReplaceTempView("stream_messages")
        made = ["stream_messages", "stream_offsets", "stream_groups"]
        return made + [table_name(name) for name in frames] + extra

    def _view(self, name: str, schema: str, rows: list[tuple[object, ...]]) -> None:
        self.spark.createDataFrame(rows, schema).createOrReplaceTempView(name)

    def stream(self, info: wire.StreamInfo) -> DataFrame:
        """One stream: what the lake's snapshot holds, then the hot log from there on."""
        from pyspark.sql import functions as f

        table = self.lake.find(info.name)
        offsets = {} if table is None else offsets_of(table.properties)
        frame = self._hot(info, offsets)
        if table is not None:
            frame = lake_frame(self.spark, table).unionByName(frame, allowMissingColumns=True)
        if self.as_of is not None:
            frame = frame.where(f.col("timestamp") <= f.lit(self.as_of))
        return frame

    def _derived(self, stream: str) -> Iterator[str]:
        """Views of what the lake makes of a stream: newest per key, and what a schema refused."""
        for suffix in (latest.SUFFIX, dead_letters.SUFFIX):
            table = self.lake.find(stream, suffix)
            if table is not None:
                name = table_name(stream, suffix)
                lake_frame(self.spark, table).createOrReplaceTempView(name)
                yield name

    def _hot(self, info: wire.StreamInfo, offsets: dict[int, int]) -> DataFrame:
        starts = {
            str(number): max(part.hot_offset, offsets.get(number, 0))
            for number, part in enumerate(info.partitions)
        }
        options = {"stream": info.name, "startingOffsets": json.dumps(starts)}
        if self.as_of is not None:
            options["endingTimestamp"] = (self.as_of + _MICROSECOND).astimezone(UTC).isoformat()
        if self.url:
            options["url"] = self.url
        return self.spark.read.format("nexo").options(**options).load()

    def _messages(self, frames: dict[str, DataFrame]) -> DataFrame:
        from pyspark.sql import functions as f

        def message(topic: str, frame: DataFrame) -> DataFrame:
            text = "if(is_valid_utf8(value), cast(value as string), base64(value))"
            return frame.select(
                f.lit(topic).alias("topic"),
                "partition",
                "offset",
                f.expr("cast(key as string)").alias("key"),
                f.expr(text).alias("value"),
                "headers",
                "timestamp",
            )

        if not frames:
            return self.spark.createDataFrame([], _MESSAGES)
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
    """Make the views described above; returns their names."""
    return Views(spark, lake, url, as_of).register(streams)


def _offsets(
    broker: StreamBroker, infos: Sequence[wire.StreamInfo]
) -> Iterator[tuple[object, ...]]:
    for info in infos:
        for group in broker.groups(info.name):
            for partition, lane in enumerate(group.partitions):
                if lane.floor > 0:
                    yield group.name, info.name, partition, lane.floor - 1, None, None
    for ordered in broker.ordered_groups():
        for at in ordered.offsets:
            when = datetime.fromtimestamp(at.committed_ms / 1000, UTC)
            yield ordered.name, at.topic, at.partition, at.offset, at.metadata, when


def _groups(broker: StreamBroker, infos: Sequence[wire.StreamInfo]) -> Iterator[tuple[object, ...]]:
    for info in infos:
        for group in broker.groups(info.name):
            members = json.dumps(group.consumers)
            topics = json.dumps([info.name])
            yield group.name, "shared", topics, group.generation, None, members, None
    for ordered in broker.ordered_groups():
        owners = [{"topic": t, "partition": p, "member": m} for t, p, m in ordered.owners]
        topics = json.dumps(sorted({topic for topic, _, _ in ordered.owners}))
        members = json.dumps(ordered.members)
        yield (
            ordered.name, "ordered", topics, ordered.generation, ordered.leader, members,
            json.dumps(owners),
        )  # fmt: skip
