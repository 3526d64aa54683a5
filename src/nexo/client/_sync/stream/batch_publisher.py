# Generated from _async/stream/batch_publisher.py by tools/unasync.py; edit that file instead.
"""Publishes many records in few batches: the requests of one ``publish_many``."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from nexo.batch import encode_plain
from nexo.batch.partitions import partition_of
from nexo.client._sync.link.link import Link
from nexo.client._sync.requests import request
from nexo.client._sync.stream.publisher import RecordPublisher
from nexo.client.replies import Reply, check_sizes, room_bytes
from nexo.client.stream_records import (
    BATCH_BYTES,
    Outgoing,
    PublishedBatch,
    by_partition,
    is_full,
    slices,
)
from nexo.errors import NexoError, PartitionsChanged
from nexo.model.stream import StreamInfo
from nexo.protocol import stream as wire
from nexo.protocol.ops import Op
from nexo.protocol.stream_publishing import ROUTE, publish_head, read_places


class BatchPublisher:
    """Cuts the records of one stream into batches, sends all, and waits for their places."""

    def __init__(self, link: Link, stream: str, publisher: RecordPublisher) -> None:
        """``publisher`` knows the number of partitions."""
        self._link = link
        self._stream = stream
        self._publisher = publisher
        self._turn = 0
        self._under_way = 0
        """Calls without keys that wait for their answers."""

    def step(self, contents: list[bytes]) -> int:
        """The number that `plain` puts in a request; 0 if their sizes differ too much to say."""
        count, total = len(contents), sum(map(len, contents))
        step, welcome = self._slice(count), self._link.welcome
        if total + 8 * count <= room_bytes(welcome, BATCH_BYTES):
            return step
        largest = max(map(len, contents))
        check_sizes(welcome, [largest])
        step = max(1, min(BATCH_BYTES // (total // count + 8), step))
        return step if largest * step <= 4 * BATCH_BYTES else 0

    def _slice(self, records: int) -> int:
        """The number of records without a key that go to one partition before the next.

        With many calls under way each stays whole: they take turns, and small batches cost more.
        """
        count = self._publisher.count
        whole = self._under_way >= (count or 1)
        return records if whole else -(-records // slices(records, count))

    def plain(self, kind: int, contents: list[bytes], step: int) -> PublishedBatch:
        """Publish values of one kind, without keys and headers."""
        now_ms, calls = int(time.time() * 1000), []
        where = publish_head(self._stream, ROUTE)
        for at in range(0, len(contents), step):
            head, body = encode_plain(contents[at : at + step], kind, now_ms)
            calls.append(self._link.call(Op.S_PUBLISH, where, head, *body))
        with self._counted():
            return PublishedBatch(_places(calls))

    def unkeyed(self, rows: list[tuple[int, bytes]], headers: list[bytes]) -> PublishedBatch:
        """Publish values with their kinds and headers, without keys."""
        runs = [(ROUTE, Outgoing())]
        most = self._slice(len(rows))
        for (kind, content), header in zip(rows, headers, strict=True):
            last = runs[-1][1]
            if len(last) >= most or is_full(last, content):
                last = Outgoing()
                runs.append((ROUTE, last))
            last.add(kind, content, None, header)
        with self._counted():
            return PublishedBatch(self._send(runs))

    @contextmanager
    def _counted(self) -> Iterator[None]:
        self._under_way += 1
        try:
            yield
        finally:
            self._under_way -= 1

    def keyed(
        self, rows: list[tuple[int, bytes]], keys: list[bytes | None], headers: list[bytes]
    ) -> PublishedBatch:
        """Publish by partition. If the stream was created
        again, none of it was stored: send all again.
        """
        while True:
            count = self._count()
            self._turn += 1
            partitions = [
                self._turn % count if key is None else partition_of(key, count) for key in keys
            ]
            runs, slots = by_partition(partitions, rows, keys, headers)
            try:
                return PublishedBatch(self._send(runs, count), slots)
            except PartitionsChanged:
                self._publisher.count = None

    def _count(self) -> int:
        while (count := self._publisher.count) is None:
            ask = wire.StreamName(stream=self._stream)
            info = request(self._link.repeat, Op.S_DESCRIBE, ask, StreamInfo)
            self._publisher.learned(info)
        return count

    def _send(self, runs: list[tuple[int, Outgoing]], count: int = 0) -> list[tuple[int, int, int]]:
        now_ms = int(time.time() * 1000)
        batches = [(partition, records.encode(now_ms)) for partition, records in runs]
        calls = [
            self._link.call(Op.S_PUBLISH, publish_head(self._stream, partition, count), head, *body)
            for partition, (head, body) in batches
        ]
        return _places(calls)


def _places(calls: Sequence[Reply]) -> list[tuple[int, int, int]]:
    """The places of all requests; waits for all before it raises the error of one."""
    found: list[tuple[int, int, int]] = []
    failure: NexoError | None = None
    for call in calls:
        try:
            found.append(next(read_places(call or b"")))
        except NexoError as error:
            failure = failure or error
    if failure is not None:
        raise failure
    return found
