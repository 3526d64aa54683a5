"""Sends records: those of one loop turn leave as one batch with one reply for all.

The sync twin, written by hand, sends each by itself.
"""

from __future__ import annotations

import asyncio
import time

from nexo.client._async.connection import Link
from nexo.client.replies import Reply
from nexo.client.stream_records import Outgoing, Published
from nexo.errors import NexoError
from nexo.protocol.ops import Op
from nexo.protocol.stream import places, publish_head

_new = tuple.__new__
"""Makes a named tuple in a third of the time its class takes."""

RUN_BYTES = 256 * 1024
"""A run of this size leaves without waiting for the end of the turn."""


class Publisher:
    """Gathers the records of one stream, by partition."""

    def __init__(self, link: Link, stream: str) -> None:
        self._link = link
        self._stream = stream
        self._runs: dict[int, _Run] = {}

    def send(
        self, partition: int, kind: int, content: bytes | None, key: bytes | None, headers: bytes
    ) -> asyncio.Future[Published]:
        """Publish one record; await the result for its place, or do not."""
        run = self._runs.get(partition)
        if run is None:
            run = self._begin(partition)
        run.records.add(kind, content, key, headers)
        receipt = run.new_receipt()
        run.receipts.append(receipt)
        if run.records.size_bytes >= RUN_BYTES:
            self._flush(partition, run)
        return receipt

    def _begin(self, partition: int) -> _Run:
        loop = asyncio.get_running_loop()
        if not self._runs:
            loop.call_soon(self._end_of_turn)
        run = self._runs[partition] = _Run(loop)
        return run

    def _end_of_turn(self) -> None:
        for partition, run in list(self._runs.items()):
            self._flush(partition, run)

    def _flush(self, partition: int, run: _Run) -> None:
        del self._runs[partition]
        try:
            head, body = run.records.encode(int(time.time() * 1000))
            reply = self._link.call(
                Op.S_PUBLISH, publish_head(self._stream, partition), head, *body
            )
        except NexoError as error:
            run.fail(error)
        else:
            reply.add_done_callback(run.answered)


class _Run:
    """Records that share one batch, each with a receipt.

    A future each: cancelling one who waits must not cancel the others.
    """

    __slots__ = ("new_receipt", "receipts", "records")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.records = Outgoing()
        self.receipts: list[asyncio.Future[Published]] = []
        self.new_receipt = loop.create_future

    def answered(self, reply: asyncio.Future[Reply]) -> None:
        """Give everyone who waits their place."""
        if reply.cancelled():
            self.fail(asyncio.CancelledError())
        elif (error := reply.exception()) is not None:
            self.fail(error)
        else:
            partition, first, _ = next(places(reply.result() or b""))
            for offset, receipt in enumerate(self.receipts, first):
                if not receipt.done():
                    receipt.set_result(_new(Published, (partition, offset)))

    def fail(self, error: BaseException) -> None:
        """Tell everyone who waits."""
        for receipt in self.receipts:
            if not receipt.done():
                receipt.set_exception(error)
                receipt.exception()  # seen: not awaiting is fine
