"""The store's values and answers, as its engine makes, the protocol carries and clients get them.

A value is one byte that says what it is, then its content (SPEC A4). Brokers keep values as they
came and look inside only where a command asks for it. What reads and writes Python objects is
`nexo.protocol.values`.
"""

from __future__ import annotations

import enum
from typing import Final

from nexo.errors import InvalidInput, ProtocolError
from nexo.model import AsArray

MAX_KEY_BYTES: Final = 64 * 1024
"""The longest key of the store, in UTF-8."""
MAX_TTL_S: Final = 100 * 365 * 86_400
MAX_TTL_MS: Final = MAX_TTL_S * 1_000


class ValueType(enum.IntEnum):
    """The first byte of a value."""

    RAW = 0
    TEXT = 1
    JSON = 2


# Plain numbers: looking a member up in its enum costs more than comparing.
TEXT: Final = int(ValueType.TEXT)
JSON: Final = int(ValueType.JSON)
JSON_PREFIX: Final = bytes([JSON])


def check_value(value: bytes) -> None:
    """Refuse bytes that no reader could make a value of; JSON is left to its readers, as parsing
    it would cost more than storing it."""
    if not value or value[0] > JSON:
        raise ProtocolError("a value begins with its type byte: 0 raw, 1 text, 2 JSON")
    if value[0] == TEXT and not value.isascii():
        try:
            str(memoryview(value)[1:], "utf-8")
        except UnicodeDecodeError as error:
            raise ProtocolError(f"the text of a value is not UTF-8: {error.reason}") from None


def check_ttl(ttl_ms: float, refusal: type[InvalidInput] = InvalidInput) -> None:
    """Raise ``refusal`` unless a value may live this long."""
    if not 0 < ttl_ms <= MAX_TTL_MS:  # nor NaN
        raise refusal(
            f"a TTL of {ttl_ms} ms is not allowed: use 1 ms to 100 years, or none for no expiry"
        )


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
