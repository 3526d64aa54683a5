"""A task's batches in a file, from where the driver publishes them.

A file is one frame after another: the stream's name with its length, `_FRAME`, and the batch as the
log is to hold it, flagged as part of a transaction.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import IO, NamedTuple

from nexo.batch import Flags
from nexo.errors import Corrupt
from nexo.hot_log import HotLog
from nexo.lake.writing.staging import StagingPlace
from pyspark_nexo.publishing.outbox import BatchPlace, RowOutbox

_NAME = Struct("<I")
_FRAME = Struct("<iiI")
"""The partition; how many the stream had, 0 if the rows name theirs; the batch's length."""


class StagedBatch(NamedTuple):
    """A batch that waits to be published.

    ``partitions`` is how many its place was chosen of, 0 if its rows named it.
    """

    stream: str
    partition: int
    partitions: int
    entry: bytes


class StagedOutbox(RowOutbox):
    """Writes each batch into a staged file, which there is once there are rows."""

    def __init__(
        self,
        broker: HotLog,
        stream: str,
        partitions: int,
        value_type: int,
        place: StagingPlace,
        name: str,
    ) -> None:
        super().__init__(broker, stream, partitions, value_type)
        self._place_of_file, self._name = place, name
        self._file: IO[bytes] | None = None
        self.bytes = 0
        """How long the file is."""

    def _send(self, where: BatchPlace) -> None:
        if self._file is None:
            self._file = self._place_of_file.create(self._name)
        head, body = self._encoded(self._taken(where), flags=Flags.TRANSACTIONAL)
        name, count = where.stream.encode(), 0 if where.named else self._counts[where.stream]
        size = len(head) + sum(map(len, body))
        parts = [_NAME.pack(len(name)), name, _FRAME.pack(where.partition, count, size), head]
        for part in (*parts, *body):
            self._file.write(bytes(part))
            self.bytes += len(part)

    def close(self) -> None:
        """Finish the file."""
        if self._file is not None:
            self._file.close()


def staged_batches(place: StagingPlace, name: str, size: int) -> Iterator[StagedBatch]:
    """The batches of a file of ``size`` bytes; `Corrupt` if it is shorter."""
    with place.open(name) as file:
        left = size
        while left > 0:
            (length,) = _NAME.unpack(_read(file, _NAME.size, name))
            stream = _read(file, length, name).decode()
            partition, count, entry = _FRAME.unpack(_read(file, _FRAME.size, name))
            yield StagedBatch(stream, partition, count, _read(file, entry, name))
            left -= _NAME.size + length + _FRAME.size + entry


def _read(file: IO[bytes], count: int, name: str) -> bytes:
    found = file.read(count)
    if len(found) < count:
        raise Corrupt(f"the staged file {name} is cut short: write the batch again")
    return bytes(found)
