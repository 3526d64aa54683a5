"""What choosing typed columns needs from the broker; no Spark is started."""

from __future__ import annotations

from itertools import chain, islice
from typing import TYPE_CHECKING

from nexo.errors import Conflict
from nexo.hot_log import HotLog
from nexo.lake.catalog import Lake, StreamId
from nexo.lake.schema import raw_schema

if TYPE_CHECKING:
    from pyiceberg.table import Table

SAMPLE = 1_000
"""Records per partition that a schema is inferred from."""


def known_table(lake: Lake, url: str | None, stream: str) -> tuple[Table | None, bool]:
    """A stream's table if it has one, and whether the stream has tiering on."""
    with HotLog(url) as broker:
        info = broker.describe(stream)
    return lake.known(StreamId(stream, info.created_ms)), bool(info.options.get("tiering"))


def stream_table(lake: Lake, url: str | None, stream: str) -> Table:
    """A stream's table, made if need be; `NotFound` if there is no such stream.

    `Conflict` if it has no table and none is to be expected, because its tiering is off.
    """
    with HotLog(url) as broker:
        info = broker.describe(stream)
    made = StreamId(stream, info.created_ms)
    if not info.options.get("tiering") and lake.known(made) is None:
        raise Conflict(
            f"stream {stream!r} has tiering off, so nothing of it is taken into the lake: "
            "update it with tiering on first"
        )
    return lake.ensure(made, raw_schema)


def sample(url: str | None, stream: str) -> list[bytes | None]:
    """The newest values of a stream."""
    found: list[bytes | None] = []
    with HotLog(url) as broker:
        for number, part in enumerate(broker.describe(stream).partitions):
            first = max(part.hot_offset, part.stable_offset - SAMPLE)
            batches = broker.read(stream, number, first, part.stable_offset)
            found += islice(chain.from_iterable(batch.values() for batch in batches), SAMPLE)
    return found
