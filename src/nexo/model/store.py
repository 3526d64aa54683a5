"""Answers of the store, in values that its engine makes, the protocol carries and clients get."""

from __future__ import annotations

from nexo.model import AsArray


class SetResult(AsArray, frozen=True):
    """Whether a conditional set took effect, and what the key held before, if asked for."""

    done: bool
    previous: bytes | None


class KeysPage(AsArray, frozen=True):
    """Some keys in order, and where the next page begins; no cursor on the last page."""

    keys: list[str]
    cursor: str | None


class KeyInfo(AsArray, frozen=True):
    """Metadata of a key, without its value."""

    kind: str
    """``value``, ``map``, ``list`` or ``set``."""
    items: int
    """Fields, values or members of a collection; 1 for a plain value."""
    size_bytes: int
    ttl_ms: int | None


class LeaseAnswer(AsArray, frozen=True):
    """The result of asking for a lease."""

    number: int | None
    """The fencing number: it grows with every lease granted; None if all are taken."""
    retry_ms: int
    """Time until the next lease expires; 0 if one was granted."""


class RateAnswer(AsArray, frozen=True):
    """The result of asking a rate limit."""

    allowed: bool
    remaining: int | float
    """The number that could still be taken now."""
    retry_ms: int
    """Time until a retry can succeed; 0 if it was allowed."""
