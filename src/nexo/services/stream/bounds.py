"""Limits on what a request may ask for, checked before anything changes."""

from __future__ import annotations

from nexo.errors import InvalidInput

REPLY_BYTES = 4 * 1024**2
"""How much one reply carries, unless the client says otherwise."""
MAX_LIMIT = 1_000_000
MAX_READ_BYTES = 16 * 1024**2
"""The most that one reply carries after its first batch, whatever is asked for."""


def check_limit(limit: int) -> None:
    """Reject a count that is not positive, or larger than any reply."""
    if not 1 <= limit <= MAX_LIMIT:
        raise InvalidInput(f"limit = {limit}: must be from 1 to {MAX_LIMIT:,}")


def check_not_negative(value: int, name: str) -> None:
    """Reject a negative wait or delay."""
    if value < 0:
        raise InvalidInput(f"{name} = {value}: must not be negative")
