"""Backpressure: reject publishes above the high mark, resume at the low mark (SPEC I7)."""

from __future__ import annotations

from nexo.errors import Overloaded


class Pressure:
    """Bytes accepted and not synced yet."""

    __slots__ = ("_high", "_low", "refusing", "slowing", "step", "waiting_bytes")

    def __init__(self, high_bytes: int) -> None:
        self._high = high_bytes
        self._low = high_bytes // 2
        self.step = high_bytes // 16
        """How exactly ``waiting_bytes`` has to be known."""
        self.waiting_bytes = 0
        self.slowing = False
        """Whether producers should wait for the disk before they send more."""
        self.refusing = False

    def check(self) -> None:
        """Raise `Overloaded` while producers must hold back."""
        if self.refusing:
            raise Overloaded(
                f"{self.waiting_bytes} bytes wait to be synced to disk; publishing resumes below "
                f"{self._low}: slow down and retry"
            )

    def add(self, size_bytes: int) -> None:
        self.waiting_bytes += size_bytes
        if self.waiting_bytes > self._low:
            self.slowing = True
            self.refusing = self.refusing or self.waiting_bytes > self._high

    def remove(self, size_bytes: int) -> None:
        self.waiting_bytes -= size_bytes
        if self.waiting_bytes <= self._low:
            self.slowing = self.refusing = False
