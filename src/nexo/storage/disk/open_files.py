"""A bound on open descriptors: who is open, and who is closed to make room (SPEC E1).

Second chance stands in for least recently used: a file sets a flag when it is used, and the
one that is found without it goes. That keeps the cost of a hit at one attribute store.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from threading import Lock
from typing import Protocol


class Closable(Protocol):
    """A file as the bound sees it."""

    used: bool
    """Touched since the bound last looked."""
    dirty: bool
    """Holds writes that are not synced, so that closing it could lose a write error."""
    pins: int
    """Threads inside a call on the descriptor; not closed before it is 0."""

    def release(self) -> None:
        """Close the descriptor."""


class OpenFiles:
    """The open files of one `Files`, at most ``limit`` at a time."""

    __slots__ = ("_files", "_make_clean", "limit", "lock")

    def __init__(self, limit: int, make_clean: Callable[[], None]) -> None:
        self.limit = limit
        self.lock = Lock()
        self._files: deque[Closable] = deque()
        self._make_clean = make_clean

    def __len__(self) -> int:
        return len(self._files)

    def add(self, file: Closable) -> None:
        """Note that ``file`` is about to open, closing others if the limit is reached."""
        while len(self._files) >= self.limit and self._make_room():
            pass
        self._files.append(file)

    def discard(self, file: Closable) -> None:
        """Note that ``file`` was closed."""
        if file in self._files:
            self._files.remove(file)

    def dirty(self) -> list[Closable]:
        """The open files with unsynced writes."""
        return [file for file in tuple(self._files) if file.dirty]

    def _make_room(self) -> bool:
        """Close a file; if all hold unsynced writes, one common sync cleans them first."""
        if self._close_first_idle():
            return True
        self._make_clean()
        return self._close_first_idle()

    def _close_first_idle(self) -> bool:
        for _ in range(2 * len(self._files)):
            file = self._files.popleft()
            with self.lock:
                if not (file.used or file.dirty or file.pins):
                    file.release()
                    return True
            file.used = False
            self._files.append(file)
        return False
