"""A limit on open descriptors, and which file to close to make room (SPEC E1).

Second chance approximates least recently used: using a file sets a flag, and the first file
found without its flag is closed. A hit costs one attribute store.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from threading import Lock
from typing import Generic, Protocol, TypeVar


class Closable(Protocol):
    """A file as `OpenFiles` sees it."""

    used: bool
    """Used since `OpenFiles` last looked."""
    dirty: bool
    """Has unsynced writes, so closing it could lose a write error."""
    pins: int
    """Threads inside a call on the descriptor; it is not closed while any are."""

    def release(self) -> None: ...


F = TypeVar("F", bound=Closable)


class OpenFiles(Generic[F]):
    """The open files of one `Files`, at most ``limit`` at a time."""

    __slots__ = ("_files", "_make_clean", "limit", "lock")

    def __init__(self, limit: int, make_clean: Callable[[], None]) -> None:
        self.limit = limit
        self.lock = Lock()
        self._files: deque[F] = deque()
        self._make_clean = make_clean

    def __len__(self) -> int:
        return len(self._files)

    def add(self, file: F) -> None:
        """Register a file that is about to open, closing others if the limit is reached."""
        while len(self._files) >= self.limit and self._make_room():
            pass
        self._files.append(file)

    def discard(self, file: F) -> None:
        if file in self._files:
            self._files.remove(file)

    def release_idle(self) -> bool:
        """Close every file that may be closed: the process has no descriptor left for another.

        Returns whether there was any.
        """
        released = False
        while self._close_first_idle():
            released = True
        return released

    def dirty(self) -> list[F]:
        """The open files with unsynced writes."""
        return [file for file in tuple(self._files) if file.dirty]

    def _make_room(self) -> bool:
        """Close a file; if all have unsynced writes, sync them all first."""
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
