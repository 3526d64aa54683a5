"""Time for a running server."""

from __future__ import annotations

import time

_LOOK_NS = 1_000_000_000
"""How often the clock is compared with the machine's."""
_SLEW = 20
"""The wall clock is followed by at most one part in this many of the time that passed."""
_UNSET_NS = 24 * 3_600 * 1_000_000_000
"""A wall clock that jumps ahead by more was not set when the server started."""
_ASLEEP_NS = 100_000_000
"""Suspensions shorter than this are left to the slewing."""


class SteadyClock:
    """Wall-clock milliseconds that never go back and do not step when the clock is set.

    Driven by the monotonic clock, so that leases, delays and TTLs keep their length. A
    difference from the wall clock is corrected slowly; only time during which the machine was
    suspended, and the first setting of an unset clock, are skipped at once.
    """

    __slots__ = ("_floor_ms", "_look_ns", "_plain_until_ns", "_slept_ns", "_zero_ns")

    def __init__(self) -> None:
        now_ns = time.monotonic_ns()
        self._zero_ns = time.time_ns() - now_ns
        self._slept_ns = _boot_ns() - now_ns
        self._look_ns = now_ns + _LOOK_NS
        self._floor_ms = 0
        self._plain_until_ns = 0
        """Until then the clock is neither corrected nor below what it showed before."""

    def now_ms(self) -> int:
        """Milliseconds since the Unix epoch."""
        now_ns = time.monotonic_ns()
        if now_ns < self._plain_until_ns:
            return (self._zero_ns + now_ns) // 1_000_000
        return self._corrected_ms(now_ns)

    def _corrected_ms(self, now_ns: int) -> int:
        if now_ns >= self._look_ns:
            self._follow(now_ns)
        now_ms = (self._zero_ns + now_ns) // 1_000_000
        if now_ms < self._floor_ms:
            return self._floor_ms
        self._plain_until_ns = self._look_ns
        return now_ms

    def _follow(self, now_ns: int) -> None:
        self._plain_until_ns = 0
        passed_ns = now_ns - self._look_ns + _LOOK_NS
        self._look_ns = now_ns + _LOOK_NS
        self._floor_ms = max(self._floor_ms, (self._zero_ns + now_ns) // 1_000_000)
        slept_ns = _boot_ns() - now_ns
        if slept_ns - self._slept_ns > _ASLEEP_NS:
            self._zero_ns += slept_ns - self._slept_ns
            self._slept_ns = slept_ns
        behind_ns = time.time_ns() - self._zero_ns - now_ns
        if behind_ns < _UNSET_NS:
            most_ns = passed_ns // _SLEW
            behind_ns = max(-most_ns, min(most_ns, behind_ns))
        self._zero_ns += behind_ns


def _boot_ns() -> int:
    """The monotonic clock with the time that the machine was suspended."""
    clock = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
    return time.clock_gettime_ns(clock)
