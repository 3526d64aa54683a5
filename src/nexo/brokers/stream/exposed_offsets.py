"""Limits how far producers get ahead of the disk: in offsets (SPEC E2) and in bytes (SPEC I7).

No offset may be used twice after a power loss. With ``file_async`` producers learn offsets before
the records are synced. No offset is exposed that lies `ahead` or more past what is known to be
synced; its producer waits for a sync first. So a log that continues that far past its end after
a power loss repeats none. The gap holds no records: readers skip it.
"""

from __future__ import annotations

from nexo.errors import Overloaded
from nexo.storage.header import Flags, seal
from nexo.storage.log import SegmentedLog

_MIN_AHEAD, _MAX_AHEAD = 1 << 14, 1 << 20
_MAX_SPAN = (1 << 32) - 1
_CONTROL = int(Flags.CONTROL)


def ahead(end: int) -> int:
    """How many offsets may be exposed past the end of a log synced up to ``end``.

    Never falls as the log grows, so that recovery, which finds at least what was synced, skips
    far enough; and at most doubles the offsets of a log that holds some.
    """
    return min(max(end, _MIN_AHEAD), _MAX_AHEAD)


def jump(log: SegmentedLog, offset: int) -> None:
    """Continue the log at ``offset``: what lies between is lost, and holds no records."""
    while log.next_offset < offset:
        span = min(offset - log.next_offset, _MAX_SPAN)
        log.append(seal([], count=0, first_ms=0, last_ms=0, flags=_CONTROL, span=span), [])


class ExposureLimit:
    """The offset up to which one partition may expose offsets."""

    __slots__ = ("limit", "renew_at", "renewing", "shipped")

    def __init__(self, synced: int) -> None:
        self.renewing = False
        """Whether a sync was asked for that will raise it."""
        self.shipped = False
        """Whether the object store has the partition, if it replicates."""
        self.extend_past(synced)

    def extend_past(self, synced: int) -> None:
        """The log is synced up to here."""
        room = ahead(synced)
        self.limit = synced + room
        self.renew_at = synced + room // 2
        """From here on, a sync is requested early, so that no producer waits for one."""


class Pressure:
    """Bytes not synced yet: publishes are rejected above a high mark, until a low mark."""

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
