"""One async client per process, on an event loop of its own in a thread.

Django runs async code on one loop under ASGI and on a new one for each call of `async_to_sync`.
An async client belongs to one loop, so it gets one that stays, and callers wait for it from
wherever they are. After a fork the child starts its own.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

import nexo

T = TypeVar("T")

_CLOSE_S = 5.0


class Background:
    """A client that any loop and thread of the process may use."""

    def __init__(self, url: str | None) -> None:
        self._url = url
        self._guard = threading.Lock()
        self._pid = 0
        self._loop: asyncio.AbstractEventLoop
        self._client: nexo.AsyncClient

    async def call(self, use: Callable[[nexo.AsyncClient], Coroutine[Any, Any, T]]) -> T:
        """Run ``use(client)`` on the loop; cancelling the caller cancels it."""
        return await asyncio.wrap_future(self.submit(use))

    def submit(self, use: Callable[[nexo.AsyncClient], Coroutine[Any, Any, T]]) -> Future[T]:
        """Begin with ``use(client)``, without waiting for it."""
        with self._guard:
            if self._pid != os.getpid():
                self._start()
            return asyncio.run_coroutine_threadsafe(use(self._client), self._loop)

    def _start(self) -> None:
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="nexo-channels", daemon=True).start()
        self._client = asyncio.run_coroutine_threadsafe(self._made(), self._loop).result()
        self._pid = os.getpid()
        os.register_at_fork(after_in_child=self._forked)

    async def _made(self) -> nexo.AsyncClient:
        return nexo.AsyncClient(self._url)

    def _forked(self) -> None:
        self._guard = threading.Lock()  # whoever holds it is in the parent

    async def close(self) -> None:
        """End the thread and its connections; they come back when used."""
        with self._guard:
            if self._pid != os.getpid():
                return
            self._pid, loop, client = 0, self._loop, self._client
        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(_ended(client.close()), loop))
        loop.call_soon_threadsafe(loop.stop)


async def _ended(closing: Awaitable[None]) -> None:
    """Wait for ``closing``, but not for ever."""
    async with asyncio.timeout(_CLOSE_S):
        await closing
