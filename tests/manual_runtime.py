"""A service's runtime whose turns, time and syncs pass when the test says so."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from nexo.config import Settings
from nexo.errors import NexoError
from nexo.model import Clock, Persistence
from nexo.storage.ports import Files


class ManualClock:
    def __init__(self, now_ms: int) -> None:
        self.now = now_ms

    def now_ms(self) -> int:
        return self.now


class ManualRuntime:
    """A `Runtime` without a loop: everything is durable at once."""

    folder = Path("/data")

    def __init__(self, files: Files, now_ms: int = 1_000_000, **settings: Any) -> None:
        self.settings = Settings(**settings)
        self.epoch = self.numbers_after_ms = 0
        self.unique = Persistence.FILE_SYNC
        self.time = ManualClock(now_ms)
        self.clock: Clock = self.time
        self.files = files
        self.refuses: NexoError | None = None
        self.wakes: list[int] = []
        self._soon: list[Callable[[], None]] = []

    def soon(self, callback: Callable[[], None]) -> None:
        self._soon.append(callback)

    def end_turn(self) -> bool:
        """Call back what was asked for; whether there was anything."""
        callbacks, self._soon = self._soon, []
        for callback in callbacks:
            callback()
        return bool(callbacks)

    def wake_at(self, due_ms: int) -> None:
        self.wakes.append(due_ms)

    def committed(self, mode: Persistence, callback: Callable[[NexoError | None], None]) -> None:
        callback(None)

    def sync_soon(self) -> None: ...

    def progress(self) -> None: ...

    def check_leads(self) -> None: ...

    def check_writable(self) -> None:
        if self.refuses is not None:
            raise self.refuses
