"""A message under way: ask for its `result`."""

from __future__ import annotations

from concurrent.futures import Future

from nexo.errors import RequestTimeout
from nexo.topics.model import RecordMetadata


class Delivery:
    """`result` gives where the message went, or raises why it was not stored.

    Not asking is fine: ``producer.flush()`` waits for all.
    """

    __slots__ = ("_future",)

    def __init__(self) -> None:
        self._future: Future[RecordMetadata] = Future()

    def result(self, timeout: float | None = None) -> RecordMetadata:
        """Wait for the place, for at most ``timeout`` seconds; then `RequestTimeout`.

        It is still under way then, and can be asked again.
        """
        try:
            return self._future.result(timeout)
        except TimeoutError:
            if self._future.done():
                raise  # that is why it was not stored
            raise RequestTimeout(f"the message was not stored within {timeout:g} s") from None

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
