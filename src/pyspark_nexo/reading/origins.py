"""Where a query's records come from: a broker anywhere, or the files of a server on this disk."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from nexo.batch import Batch
from nexo.hot_log import HotLog
from nexo.protocol.stream import StreamInfo
from pyspark_nexo.options import SourceOptions
from pyspark_nexo.reading.segments import open_files


class RecordOrigin(Protocol):
    """One stream's records; sent to the executors."""

    @property
    def stream(self) -> str:
        """The stream's name."""

    def describe(self) -> StreamInfo:
        """When the stream was created, and the offsets of each partition."""

    def offsets_at(self, time_ms: int) -> list[int]:
        """Per partition: the first offset of a record of that time or later, else the end."""

    def read(self, partition: int, first: int, end: int) -> Iterator[Batch]:
        """The batches that hold the offsets from ``first``, below ``end``."""


@dataclass(frozen=True, slots=True)
class BrokerOrigin:
    """A stream as its broker returns it, including the lake's part."""

    url: str | None
    stream: str

    def describe(self) -> StreamInfo:
        with HotLog(self.url) as broker:
            return broker.describe(self.stream)

    def offsets_at(self, time_ms: int) -> list[int]:
        with HotLog(self.url) as broker:
            return broker.offsets_at(self.stream, time_ms)

    def read(self, partition: int, first: int, end: int) -> Iterator[Batch]:
        with HotLog(self.url) as broker:
            yield from broker.read(self.stream, partition, first, end)


def open_origin(options: SourceOptions) -> RecordOrigin:
    """What the options name: ``dataDir`` is a server's files, anything else its broker."""
    if options.data_dir is not None:
        return open_files(Path(options.data_dir), options.stream)
    return BrokerOrigin(options.url, options.stream)
