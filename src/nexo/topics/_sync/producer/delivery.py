"""A message in flight: ask for its `result`."""

from __future__ import annotations

from concurrent.futures import Future

from nexo.client.checks import seconds
from nexo.errors import RequestTimeout
from nexo.options.units import Duration
from nexo.topics.model import RecordMetadata


class Delivery:
    """`result` gives where the message went, or raises why it was not stored.

    Not asking is fine: ``producer.flush()`` waits for all, and a failure that nobody asked for
    is logged and raised by ``producer.close()``.
    """

    __slots__ = ("_future", "asked")

    def __init__(self) -> None:
        self._future: Future[RecordMetadata] = Future()
        self.asked = False
        """Whether anybody has asked for its result."""

    def result(self, timeout: Duration | None = None) -> RecordMetadata:
        """Wait for the place, for at most ``timeout``; then `RequestTimeout`.

        It is still in flight then, and can be asked again.
        """
        limit_s = seconds(timeout)
        self.asked = True
        try:
            return self._future.result(limit_s)
        except TimeoutError:
            if self._future.done():
                raise  # that is why it was not stored
            raise RequestTimeout(f"the message was not stored within {limit_s:g} s") from None

    def done(self) -> bool:
        """Whether it is decided."""
        return self._future.done()

    def settle(self, place: RecordMetadata) -> None:
        """It was stored."""
        if not self._future.done():
            self._future.set_result(place)

    def fail(self, error: BaseException) -> None:
        """It was not."""
        if not self._future.done():
            self._future.set_exception(error)
