"""The views that queries have over streams, alike in DuckDB and in Spark.

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

`nexo.sql.engine` and `pyspark_nexo.views` make them; one contract suite checks both.
"""

from __future__ import annotations

from datetime import datetime

import pyarrow as pa

from nexo.errors import InvalidInput

MOST_STREAMS = 200
"""How many streams ``stream_messages`` covers unless they are named: a plan has its limits."""
MESSAGES, OFFSETS, GROUPS = "stream_messages", "stream_offsets", "stream_groups"
_TEXT, _TIME = pa.string(), pa.timestamp("us", tz="UTC")
COLUMNS = {
    MESSAGES: pa.schema([
        ("topic", _TEXT), ("partition", pa.int32()), ("offset", pa.int64()), ("key", _TEXT),
        ("value", _TEXT), ("headers", _TEXT), ("timestamp", _TIME),
    ]),
    OFFSETS: pa.schema([
        ("group_id", _TEXT), ("topic", _TEXT), ("partition", pa.int32()), ("offset", pa.int64()),
        ("metadata", _TEXT), ("committed_at", _TIME),
    ]),
    GROUPS: pa.schema([
        ("group_id", _TEXT), ("kind", _TEXT), ("topics", _TEXT), ("generation", pa.int32()),
        ("leader", _TEXT), ("members", _TEXT), ("assignment", _TEXT),
    ]),
}  # fmt: skip
"""Of the views that are not one stream's."""


def check_moment(as_of: datetime | None) -> None:
    """`InvalidInput` for a moment that could be any of a day's."""
    if as_of is not None and as_of.tzinfo is None:
        raise InvalidInput(
            f"as_of = {as_of.isoformat()} says nothing of its time zone: add tzinfo=UTC, say"
        )
