"""The three kinds of link behind one blocking interface, so that one suite runs on all."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Protocol, TypeVar

import uvloop

from nexo.client._async.link.link import Link as AsyncLink
from nexo.client._async.link.link import Poll as AsyncPoll
from nexo.client._sync.link.duplex import Duplex
from nexo.client._sync.link.link import Link as SyncLink
from nexo.client.address import parse_url
from nexo.client.connecting import Reached
from nexo.client.replies import Reply
from nexo.model import Broker

T = TypeVar("T")


class PollDriver(Protocol):
    """A long poll."""

    def reply(self) -> Reply: ...
    def cancel(self) -> None: ...


class Driver(Protocol):
    """What the suite uses of a link."""

    def call(self, op: int, *parts: bytes, timeout_s: float | None = None) -> Reply: ...
    def repeat(self, op: int, *parts: bytes, timeout_s: float | None = None) -> Reply: ...
    def poll(self, op: int, *parts: bytes, timeout_s: float | None = None) -> PollDriver: ...
    def close(self) -> None: ...


class DuplexDriver(Driver, Protocol):
    """What it uses of a link that hears pushes."""

    def on_push(self, handler: Callable[[memoryview], None]) -> None: ...
    def on_reconnect(self, hook: Callable[[], object]) -> object: ...
    def on_close(self, hook: Callable[[], object]) -> object: ...


class AsyncDriver:
    """The async link, on a loop in a thread."""

    new_loop = staticmethod(asyncio.new_event_loop)

    def __init__(self, url: str, broker: Broker = Broker.STORE) -> None:
        self._loop = self.new_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.link = AsyncLink(parse_url(url), broker)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    def call(self, op: int, *parts: bytes, timeout_s: float | None = None) -> Reply:
        async def call() -> Reply:
            return await self.link.call(op, *parts, timeout_s=timeout_s)

        return self.run(call())

    def repeat(self, op: int, *parts: bytes, timeout_s: float | None = None) -> Reply:
        return self.run(self.link.repeat(op, *parts, timeout_s=timeout_s))

    def poll(self, op: int, *parts: bytes, timeout_s: float | None = None) -> PollDriver:
        async def poll() -> AsyncPoll:
            return self.link.poll(op, *parts, timeout_s=timeout_s)

        return _AsyncPollDriver(self, self.run(poll()))

    def on_push(self, handler: Callable[[memoryview], None]) -> None:
        self.link.on_push(handler)

    def on_reconnect(self, hook: Callable[[], object]) -> None:
        async def call_hook() -> None:
            hook()

        self.link.on_reconnect(call_hook)

    def on_close(self, hook: Callable[[], object]) -> None:
        async def call_hook() -> None:
            await asyncio.to_thread(hook)

        self.link.on_close(call_hook)

    def close(self) -> None:
        if self._loop.is_closed():
            return
        self.run(self.link.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class UvloopDriver(AsyncDriver):
    """The same on the loop that production uses."""

    new_loop = staticmethod(uvloop.new_event_loop)


class _AsyncPollDriver:
    def __init__(self, driver: AsyncDriver, poll: AsyncPoll) -> None:
        self._driver = driver
        self._poll = poll

    def reply(self) -> Reply:
        return self._driver.run(self._poll.reply())

    def cancel(self) -> None:
        self._driver._loop.call_soon_threadsafe(self._poll.cancel)


def open_pool(url: str, broker: Broker = Broker.STORE) -> Driver:
    """The sync link for plain calls."""
    return SyncLink(parse_url(url), broker)


def open_duplex(url: str, broker: Broker = Broker.STORE) -> DuplexDriver:
    """The sync link with a reader thread."""
    return Duplex(parse_url(url), broker, Reached())


ALL: dict[str, Callable[..., Driver]] = {
    "async": AsyncDriver,
    "uvloop": UvloopDriver,
    "pool": open_pool,
    "duplex": open_duplex,
}
DUPLEX: dict[str, Callable[..., DuplexDriver]] = {
    "async": AsyncDriver,
    "uvloop": UvloopDriver,
    "duplex": open_duplex,
}
