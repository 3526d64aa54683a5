"""Time for a running server."""

from __future__ import annotations

import time


class SteadyClock:
    """Wall-clock milliseconds that do not step when the machine's clock is set.

    Read once from the wall at start and moved by the monotonic clock from then on, so that
    leases, delays and TTLs keep their length whatever happens to the wall clock.
    """

    __slots__ = ("_zero_ns",)

    def __init__(self) -> None:
        self._zero_ns = time.time_ns() - time.monotonic_ns()

    def now_ms(self) -> int:
        """Milliseconds since the Unix epoch."""
        return (self._zero_ns + time.monotonic_ns()) // 1_000_000

    def ms_at(self, monotonic_ns: int) -> int:
        """What `now_ms` was at a time of the monotonic clock."""
        return (self._zero_ns + monotonic_ns) // 1_000_000
