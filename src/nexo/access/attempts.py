"""Limits failed logins, per address and user and per address alone (SPEC A10).

A lock-out rejects passwords, even the right one. A valid token is still accepted, since nobody
can guess one.
"""

from __future__ import annotations

from hashlib import blake2b

from nexo.errors import LockedOut
from nexo.limits import LOCKED_OUT_MS

PER_USER = 5
PER_ADDRESS = 50
_MOST_KEYS = 10_000


_KEY_BYTES = 16
REPORT_BYTES = 2 * _KEY_BYTES


class Attempts:
    """Counts failures in a window that each failure renews; memory is bounded."""

    def __init__(self) -> None:
        self._failures: dict[bytes, tuple[int, int]] = {}

    def locked(self, address: str, user: str, now_ms: int) -> LockedOut | None:
        """The error once there were too many failures; None before that."""
        tried = self._count(_key(address, user), now_ms) >= PER_USER
        if tried or self._count(_key(address, ""), now_ms) >= PER_ADDRESS:
            return LockedOut(f"too many failed logins; wait {LOCKED_OUT_MS // 1000} seconds")
        return None

    def failed(self, address: str, user: str, now_ms: int) -> bytes:
        """Count a failure; returns a report for other processes, empty if they need none."""
        whole = _key(address, "")
        report = _key(address, user) + whole
        self.heard(report, now_ms)
        return report if self._count(whole, now_ms) <= PER_ADDRESS else b""

    def heard(self, report: bytes, now_ms: int) -> None:
        """Count a failure that this or another process reported."""
        if len(self._failures) >= _MOST_KEYS:
            self._forget(now_ms)
        for key in (report[:_KEY_BYTES], report[_KEY_BYTES:]):
            self._failures[key] = (self._count(key, now_ms) + 1, now_ms)

    def _count(self, key: bytes, now_ms: int) -> int:
        count, last_ms = self._failures.get(key, (0, 0))
        return count if now_ms - last_ms < LOCKED_OUT_MS else 0

    def _forget(self, now_ms: int) -> None:
        """Drop expired counts; under a flood from everywhere, all of them."""
        kept = {key: row for key, row in self._failures.items() if now_ms - row[1] < LOCKED_OUT_MS}
        self._failures = kept if len(kept) < _MOST_KEYS // 2 else {}


def _key(address: str, user: str) -> bytes:
    """A key of fixed length, however long the name."""
    text = f"{address}\0{user}".encode("utf-8", "surrogatepass")
    return blake2b(text, digest_size=_KEY_BYTES).digest()
