"""Limits on what a request may ask for, checked before anything changes."""

from __future__ import annotations

REPLY_BYTES = 4 * 1024**2
"""How much one reply carries, unless the client says otherwise."""
MAX_LIMIT = 1_000_000
MAX_READ_BYTES = 16 * 1024**2
"""The most that one reply carries after its first batch, whatever is asked for."""
