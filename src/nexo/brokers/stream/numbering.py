"""Which offsets may be given out: none twice, even if a power loss takes records (SPEC E2).

With ``file_async`` producers learn offsets before the records are synced. Nobody is told of one
that lies `ahead` or more of what is known to be synced; whoever published it waits for a sync
first. So after a power loss, a log that goes on that far behind its end repeats none.
The gap holds no records: readers step over it.
"""

from __future__ import annotations

from nexo.storage.header import Flags, seal
from nexo.storage.ports import Log

_MIN_AHEAD, _MAX_AHEAD = 1 << 14, 1 << 20
_MAX_SPAN = (1 << 32) - 1
_CONTROL = int(Flags.CONTROL)


def ahead(end: int) -> int:
    """How many offsets may be told behind a log that is synced up to ``end``.

    Never falls as the log grows, so that recovery, which finds at least what was synced, jumps
    far enough; and not more than doubles the offsets of a log that holds some.
    """
    return min(max(end, _MIN_AHEAD), _MAX_AHEAD)


def jump(log: Log, offset: int) -> None:
    """Have the log go on at ``offset``: what lies between is lost, and holds no records."""
    while log.next_offset < offset:
        span = min(offset - log.next_offset, _MAX_SPAN)
        log.append(seal([], count=0, first_ms=0, last_ms=0, flags=_CONTROL, span=span), [])


class Grant:
    """Up to where the offsets of one partition may be told."""

    __slots__ = ("limit", "renew_at", "renewing")

    def __init__(self, synced: int) -> None:
        self.renewing = False
        """Whether a sync was asked for that will raise it."""
        self.raise_behind(synced)

    def raise_behind(self, synced: int) -> None:
        """The log is synced up to here."""
        room = ahead(synced)
        self.limit = synced + room
        self.renew_at = synced + room // 2
        """From here on it is time to ask for a sync, so that nobody has to wait for one."""
