"""An event loop in a thread of its own, for aiokafka under the sync client."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")


class LoopThread:
    """Runs coroutines for threads; started with the first, ended by `close`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def start(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Begin ``work``; in the order of the calls."""
        return asyncio.run_coroutine_threadsafe(work, self._running())

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Do ``work`` and return its result."""
        return self.start(work).result()

    def _running(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(
                    target=self._loop.run_forever, name="nexo-kafka", daemon=True
                )
                self._thread.start()
            return self._loop

    def close(self) -> None:
        """End the loop and its thread."""
        with self._lock:
            loop, thread, self._loop = self._loop, self._thread, None
        if loop is not None and thread is not None:
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.close()
