"""A message in flight: await it for its place."""

from __future__ import annotations

import asyncio
from collections.abc import Generator

from nexo.client.checks import seconds
from nexo.errors import RequestTimeout
from nexo.options.units import Duration
from nexo.topics.model import RecordMetadata


class Delivery:
    """Awaiting it returns where the message was stored, or raises why it was not.

    Not awaiting it is fine: ``producer.flush()`` waits for all, and a failure that nobody awaited
    is logged and raised by ``producer.close()``.
    """

    __slots__ = ("_future", "asked")

    def __init__(self) -> None:
        self._future: asyncio.Future[RecordMetadata] = asyncio.get_running_loop().create_future()
        self.asked = False
        """Whether anybody has asked for its result."""

    def __await__(self) -> Generator[object, None, RecordMetadata]:
        self.asked = True
        # Shielded: cancelling a waiter must not withdraw the message.
        return asyncio.shield(self._future).__await__()

    async def result(self, timeout: Duration | None = None) -> RecordMetadata:
        """`await`, for at most ``timeout``; then `RequestTimeout`.

        It is still in flight then, and can be awaited again.
        """
        limit_s = seconds(timeout)
        try:
            async with asyncio.timeout(limit_s):
                return await self
        except TimeoutError:
            if self._future.done():
                raise  # that is why it was not stored
            raise RequestTimeout(f"the message was not stored within {limit_s:g} s") from None

    def done(self) -> bool:
        """Whether it is decided."""
        return self._future.done()

    def settle(self, place: RecordMetadata) -> None:
        if not self._future.done():
            self._future.set_result(place)

    def fail(self, error: BaseException) -> None:
        if not self._future.done():
            self._future.set_exception(error)
            self._future.exception()  # mark as retrieved: often nobody waits for it
