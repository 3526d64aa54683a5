"""Sends records: those of one loop turn leave as one batch with one reply for all.

The sync twin, written by hand, sends each by itself.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Generator

from nexo.client._async.connection import Link
from nexo.client.replies import Reply
from nexo.client.stream_records import Outgoing, Published
from nexo.errors import NexoError
from nexo.protocol.ops import Op
from nexo.protocol.stream import places, publish_head

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
    ) -> Receipt:
        """Publish one record; await the result for its place."""
        run = self._runs.get(partition)
        if run is None:
            run = self._begin(partition)
        index = len(run.records.values)
        run.records.add(kind, content, key, headers)
        if run.records.size_bytes >= RUN_BYTES:
            self._flush(partition, run)
        return Receipt(run, index)

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
    """Records that share one batch, and who waits for its reply."""

    __slots__ = ("_error", "_loop", "_place", "_waiting", "records")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.records = Outgoing()
        self._loop = loop
        self._waiting: list[tuple[asyncio.Future[Published], int]] | None = []
        self._place = (0, 0)
        self._error: BaseException | None = None

    def answered(self, reply: asyncio.Future[Reply]) -> None:
        """Give everyone who waits their place."""
        if reply.cancelled():
            self.fail(asyncio.CancelledError())
        elif (error := reply.exception()) is not None:
            self.fail(error)
        else:
            partition, first, _ = next(places(reply.result() or b""))
            self._place = partition, first
            for future, index in self._end():
                if not future.done():
                    future.set_result(Published(partition, first + index))

    def fail(self, error: BaseException) -> None:
        """Tell everyone who waits."""
        self._error = error
        for future, _ in self._end():
            if not future.done():
                future.set_exception(error)

    def wait(self, index: int) -> Generator[object, None, Published]:
        """Wait for the place of one record."""
        if self._waiting is not None:
            # A future each: cancelling one who waits must not cancel the others.
            future: asyncio.Future[Published] = self._loop.create_future()
            self._waiting.append((future, index))
            return (yield from future.__await__())
        if self._error is not None:
            raise self._error
        return Published(self._place[0], self._place[1] + index)

    def _end(self) -> list[tuple[asyncio.Future[Published], int]]:
        waiting, self._waiting = self._waiting or [], None
        return waiting


class Receipt:
    """A record under way; awaiting it gives its place, not awaiting is fine."""

    __slots__ = ("_index", "_run")

    def __init__(self, run: _Run, index: int) -> None:
        self._run = run
        self._index = index

    def __await__(self) -> Generator[object, None, Published]:
        return self._run.wait(self._index)
