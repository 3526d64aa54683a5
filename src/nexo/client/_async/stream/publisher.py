"""Sends records: those of one loop turn leave as one batch with one reply for all.

The sync twin, written by hand, sends each by itself.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from nexo.client._async.link.gathering import FULL, Gathering
from nexo.client._async.link.link import Link
from nexo.client.replies import Reply, room_bytes
from nexo.client.stream_records import Outgoing, Published, slices
from nexo.errors import NexoError, PartitionsChanged, PayloadTooLarge
from nexo.protocol.murmur import partition_of
from nexo.protocol.ops import Op
from nexo.protocol.stream import StreamInfo
from nexo.protocol.stream_publishing import PLACE, ROUTE, publish_head, read_each

RUN_BYTES = 256 * 1024
"""A run of this size leaves without waiting for the end of the turn."""

_new = tuple.__new__
"""Makes a named tuple in a third of the time its class takes."""


class Publisher:
    """Gathers the records of one stream, by partition."""

    def __init__(self, link: Link, stream: str, describe: Callable[[], Awaitable[object]]) -> None:
        """``describe`` asks how many partitions there are, and says so by `learned`."""
        self.link = link
        self.stream = stream
        self.count: int | None = None
        """How many partitions there are, if that is known."""
        self._describe = describe
        self._runs: dict[int, _Run] = {}
        self._refused: list[_Run] = []
        """Sent by another number of partitions than there are; before what is held."""
        self._held: _Run | None = None
        self._learning: asyncio.Task[None] | None = None

    def send(
        self, partition: int, kind: int, content: bytes | None, key: bytes | None, headers: bytes
    ) -> asyncio.Future[Published]:
        """Publish one record; await the result for its place, or do not."""
        run = self._runs.get(partition)
        if run is None:
            run = self._begin(partition)
        run.records.add(kind, content, key, headers)
        receipt = run.gathering.receipt()
        if run.records.size_bytes >= run.room_bytes or len(run.gathering.receipts) >= FULL:
            self._flush(partition)
        return receipt

    def send_keyed(
        self, kind: int, content: bytes | None, key: bytes, headers: bytes
    ) -> asyncio.Future[Published]:
        """Publish one record where its key belongs, once it is known how many partitions are."""
        count = self.count
        if count is None:
            return self._hold(kind, content, key, headers)
        # The only partition is written to in turn, so that all its records stay in order.
        partition = partition_of(key, count) if count > 1 else ROUTE
        return self.send(partition, kind, content, key, headers)

    def _begin(self, partition: int) -> _Run:
        if self._held is not None and partition == ROUTE:
            return self._held  # there may be one partition, which keeps all in order
        if not self._runs:
            asyncio.get_running_loop().call_soon(self.flush)
        run = self._runs[partition] = _Run(self, partition, self.count or 0)
        return run

    def flush(self) -> None:
        """Send what was gathered, without waiting for the end of the turn."""
        for partition in list(self._runs):
            self._flush(partition)

    def _flush(self, partition: int) -> None:
        run = self._runs.pop(partition, None)
        if run is None:
            return  # it is held
        parts = slices(len(run.records), self.count) if partition == ROUTE else 1
        if parts > 1:
            run.divide(parts)
        else:
            run.send()

    # -- how many partitions there are

    def _hold(
        self, kind: int, content: bytes | None, key: bytes, headers: bytes
    ) -> asyncio.Future[Published]:
        if self._held is None:
            self._held = _Run(self, ROUTE, 0)
            self._learn_soon()
        self._held.records.add(kind, content, key, headers)
        return self._held.gathering.receipt()

    def refused(self, run: _Run) -> None:
        """There are other partitions than the run went by: find out, and send it again."""
        self.count = None
        self._refused.append(run)
        self._learn_soon()

    def _learn_soon(self) -> None:
        if self._learning is None:
            self._learning = asyncio.get_running_loop().create_task(self._learn())
            self.link.let_end(self._learning)

    async def _learn(self) -> None:
        try:
            await self._describe()
        except BaseException as error:  # whoever waits would wait for ever
            for run in self._unplaced():
                run.gathering.fail(error)
            if not isinstance(error, Exception):
                raise
        finally:
            self._learning = None

    def learned(self, info: StreamInfo) -> None:
        """So many there are: send what waits for that, in order."""
        count = len(info.partitions)
        if count != self.count:
            self.flush()  # what was placed by another number leaves with that
        self.count = count
        for run in self._unplaced():
            run.spread()

    def send_again(
        self,
        row: tuple[int, bytes | None, bytes | None, bytes],
        receipt: asyncio.Future[Published],
    ) -> None:
        """Send a record that was gathered before, with the receipt that was given out for it."""
        key, count = row[2], self.count
        at = ROUTE if key is None or count is None or count == 1 else partition_of(key, count)
        run = self._runs.get(at) or self._begin(at)
        run.records.add(*row)
        run.gathering.adopt([receipt])
        if run.records.size_bytes >= run.room_bytes:
            self._flush(at)

    def _unplaced(self) -> list[_Run]:
        runs = self._refused if self._held is None else [*self._refused, self._held]
        self._refused, self._held = [], None
        return runs


class _Run:
    """Records that share one batch."""

    __slots__ = ("count", "gathering", "partition", "publisher", "records", "room_bytes")

    def __init__(self, publisher: Publisher, partition: int, count: int) -> None:
        self.publisher = publisher
        self.partition = partition
        self.count = count
        self.records = Outgoing()
        self.room_bytes = room_bytes(publisher.link.welcome, RUN_BYTES)
        self.gathering: Gathering[Published] = _Receipts(self)

    def send(self) -> None:
        """Send what was gathered."""
        if not self.records:
            return
        try:
            head, body = self.records.encode(int(time.time() * 1000))
            where = publish_head(self.publisher.stream, *self._lane())
        except Exception as error:  # whoever waits would wait for ever
            self.gathering.refuse(error)
            return
        self.gathering.send(self.publisher.link, Op.S_PUBLISH_EACH, where, head, *body)

    def _lane(self) -> tuple[int, int]:
        """The partition, and of how many, if it was chosen by that number."""
        if self.partition != ROUTE:
            return self.partition, self.count
        return (0, 1) if self.records.keys else (ROUTE, 0)

    def divide(self, parts: int = 2) -> None:
        """Send it in parts: in halves if one record of many was refused, and none was stored."""
        step = -(-len(self.records) // parts)
        for at in range(0, len(self.records), step):
            self.send_part(slice(at, at + step))

    def send_part(self, which: slice) -> None:
        """Send some of the records, if any, as a run of their own."""
        part = _Run(self.publisher, self.partition, self.count)
        part.records = self.records.part(which)
        part.gathering.adopt(self.gathering.receipts[which])
        part.send()

    def spread(self) -> None:
        """Have each record sent to the partition that its key has now."""
        receipts = self.gathering.receipts
        for row, receipt in zip(self.records.rows(), receipts, strict=True):
            self.publisher.send_again(row, receipt)


class _Receipts(Gathering[Published]):
    """Who waits for a run."""

    __slots__ = ("_run",)

    def __init__(self, run: _Run) -> None:
        super().__init__(_placed, run.divide)
        self._run: _Run | None = run

    def over(self) -> None:
        """See `Gathering.over`."""
        super().over()
        self._run = None

    def refuse(self, error: BaseException) -> None:
        """Nothing of the run was stored: try again if that can help."""
        if isinstance(error, PartitionsChanged) and self._run is not None:
            self._run.publisher.refused(self._run)
        else:
            super().refuse(error)


def _placed(reply: Reply) -> list[Published | NexoError]:
    payload = reply or b""
    if len(payload) == PLACE.size:
        partition, first, count = PLACE.unpack(payload)
        return [_new(Published, (partition, offset)) for offset in range(first, first + count)]
    partition, first, count, limit, refused = read_each(payload)
    found: list[Published | NexoError] = [Published(partition, first + n) for n in range(count)]
    for row in refused:
        found.insert(row, PayloadTooLarge(f"the value exceeds the stream's limit of {limit} bytes"))
    return found
