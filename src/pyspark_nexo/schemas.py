"""What choosing typed columns needs from the broker; no Spark is started."""

from __future__ import annotations

from itertools import chain, islice
from typing import TYPE_CHECKING

from nexo.lake.catalog import Lake, StreamId
from nexo.lake.schema import raw_schema
from pyspark_nexo.broker import StreamBroker

if TYPE_CHECKING:
    from pyiceberg.table import Table

SAMPLE = 1_000
"""Records per partition that a schema is inferred from."""


def stream_table(lake: Lake, url: str | None, stream: str) -> Table:
    """A stream's table, made if need be; `NotFound` if there is no such stream."""
    with StreamBroker(url) as broker:
        created_ms = broker.describe(stream).created_ms
    return lake.ensure(StreamId(stream, created_ms), raw_schema)


def sample(url: str | None, stream: str) -> list[bytes | None]:
    """The newest values of a stream."""
    found: list[bytes | None] = []
    with StreamBroker(url) as broker:
        for number, part in enumerate(broker.describe(stream).partitions):
            first = max(part.hot_offset, part.stable_offset - SAMPLE)
            batches = broker.read(stream, number, first, part.stable_offset)
            found += islice(chain.from_iterable(batch.values() for batch in batches), SAMPLE)
    return found
