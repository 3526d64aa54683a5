"""Sends records: those of one loop turn are sent as one batch with one reply.

The sync twin, written by hand, sends each by itself.
"""

from __future__ import annotations

import asyncio
import time

from nexo.batch.partitions import partition_of
from nexo.client._async.link.gathering import FULL, GatheredSends
from nexo.client._async.link.link import Link
from nexo.client.replies import Reply
from nexo.client.stream_records import Outgoing, Published, consecutive, slices
from nexo.errors import NexoError, PartitionsChanged, PayloadTooLarge
from nexo.model import Buffer
from nexo.model.stream import StreamInfo
from nexo.protocol import stream as wire
from nexo.protocol.ops import Op
from nexo.protocol.stream_publishing import PLACE, ROUTE, publish_head, read_each

RUN_BYTES = 256 * 1024
"""A run of this size is sent without waiting for the end of the turn."""


class RecordPublisher:
    """Gathers the records of one stream, by partition."""

    def __init__(self, link: Link, stream: str) -> None:
        self.link = link
        self.stream = stream
        self.count: int | None = None
        """The number of partitions, if known."""
        self.runs: dict[int, _Records] = {}
        """The runs being gathered, by partition."""
        self._refused: list[_Records] = []
        """Records to send again because the partition count changed; sent before those held."""
        self._held: _Records | None = None
        self._learning: asyncio.Task[None] | None = None

    def send(
        self, partition: int, kind: int, content: bytes | None, key: bytes | None, headers: bytes
    ) -> asyncio.Future[Published]:
        """Publish one record; awaiting the result, its place, is optional."""
        run = self.runs.get(partition)
        if run is None:
            run = self._begin(partition)
        run.records.add(kind, content, key, headers)
        receipt = run.receipt()
        if run.records.size_bytes >= run.room_bytes or len(run.receipts) >= FULL:
            self.link.gatherer.leave(run)
        return receipt

    def send_keyed(
        self, kind: int, content: bytes | None, key: bytes, headers: bytes
    ) -> asyncio.Future[Published]:
        """Publish one record to its key's partition, once the partition count is known."""
        count = self.count
        if count is None:
            return self._hold(kind, content, key, headers)
        # With one partition all records are sent in turn, so they stay in order.
        partition = partition_of(key, count) if count > 1 else ROUTE
        return self.send(partition, kind, content, key, headers)

    def _begin(self, partition: int) -> _Records:
        if self._held is not None and partition == ROUTE:
            return self._held  # there may be one partition, which keeps all in order
        run = _Records(self, partition, self.count or 0)
        self.link.gatherer.begin(run)
        self.runs[partition] = run
        return run

    # -- how many partitions there are

    def _hold(
        self, kind: int, content: bytes | None, key: bytes, headers: bytes
    ) -> asyncio.Future[Published]:
        if self._held is None:
            self._held = _Records(self, ROUTE, 0)
            self._learn_soon()
        self._held.records.add(kind, content, key, headers)
        return self._held.receipt()

    def refused(self, run: _Records) -> None:
        """The stream has another partition count than the run
        assumed: look it up, and send again.
        """
        self.count = None
        self._refused.append(run)
        self._learn_soon()

    def _learn_soon(self) -> None:
        if self._learning is None:
            self.link.gatherer.block()
            self._learning = asyncio.get_running_loop().create_task(self._learn())
            self.link.let_end(self._learning)

    async def _learn(self) -> None:
        try:
            ask = wire.pack(wire.StreamName(stream=self.stream))
            reply = await self.link.send(Op.S_DESCRIBE, (ask,))
            self.learned(wire.unpack(StreamInfo, reply or b""))
        except BaseException as error:  # otherwise callers would wait for ever
            for run in self._unplaced():
                run.fail(error)
            if not isinstance(error, Exception):
                raise
        finally:
            self._learning = None
            self.link.gatherer.unblock(self.link)

    def learned(self, info: StreamInfo) -> None:
        """The partition count is known: send what waited for it, in order."""
        count = len(info.partitions)
        if count != self.count:
            self.link.gatherer.flush()  # what was placed by another count is sent with that count
        self.count = count
        for run in self._unplaced():
            run.spread()

    def send_again(
        self,
        row: tuple[int, bytes | None, bytes | None, bytes],
        receipt: asyncio.Future[Published],
    ) -> None:
        """Send a record again, with the receipt that its caller already has."""
        key, count = row[2], self.count
        at = ROUTE if key is None or count is None or count == 1 else partition_of(key, count)
        run = self.runs.get(at) or self._begin(at)
        run.records.add(*row)
        run.receipts.append(receipt)
        if run.records.size_bytes >= run.room_bytes:
            self.link.gatherer.leave(run)

    def _unplaced(self) -> list[_Records]:
        runs = self._refused if self._held is None else [*self._refused, self._held]
        self._refused, self._held = [], None
        return runs


class _Records(GatheredSends[Published]):
    """Records that share one batch."""

    __slots__ = ("count", "partition", "publisher", "records")

    def __init__(self, publisher: RecordPublisher, partition: int, count: int) -> None:
        super().__init__(publisher.link, RUN_BYTES)
        self.publisher = publisher
        self.partition = partition
        self.count = count
        self.records = Outgoing()

    def leaves(self) -> None:
        self.publisher.runs.pop(self.partition, None)

    def send(self) -> None:
        """Send the batch; records without a key are spread over the partitions."""
        count = self.publisher.count
        parts = slices(len(self.records), count) if self.partition == ROUTE else 1
        if parts == 1:
            super().send()
            return
        step = -(-len(self.records) // parts)
        for at in range(0, len(self.records), step):
            which = slice(at, at + step)
            part = self.part(which)
            part.receipts += self.receipts[which]
            super(_Records, part).send()

    def request(self) -> tuple[int, tuple[Buffer, ...]]:
        head, body = self.records.encode(int(time.time() * 1000))
        where = publish_head(self.publisher.stream, *self._target())
        return Op.S_PUBLISH_EACH, (where, head, *body)

    def _target(self) -> tuple[int, int]:
        """The partition, and the assumed count if it was chosen by one."""
        if self.partition != ROUTE:
            return self.partition, self.count
        return (0, 1) if self.records.keys else (ROUTE, 0)

    def part(self, which: slice) -> _Records:
        part = _Records(self.publisher, self.partition, self.count)
        part.records = self.records.part(which)
        return part

    def results(self, reply: Reply) -> list[Published | NexoError]:
        payload = reply or b""
        if len(payload) == PLACE.size:
            return [*consecutive(*PLACE.unpack(payload))]
        partition, first, count, limit, refused = read_each(payload)
        found: list[Published | NexoError] = [*consecutive(partition, first, count)]
        for row in refused:
            found.insert(
                row, PayloadTooLarge(f"the value exceeds the stream's limit of {limit} bytes")
            )
        return found

    def refuse(self, error: BaseException) -> None:
        if isinstance(error, PartitionsChanged):
            self.publisher.refused(self)
        else:
            super().refuse(error)

    def spread(self) -> None:
        """Send each record to the partition that its key has now."""
        for row, receipt in zip(self.records.rows(), self.receipts, strict=True):
            self.publisher.send_again(row, receipt)
