"""A value as brokers hold it: one byte that says what it is, then its content (SPEC A4).

Brokers keep values as they came and look inside only where a command asks for it. What reads
and writes Python objects is `nexo.protocol.values`.
"""

from __future__ import annotations

import enum
from typing import Final

from nexo.errors import InvalidInput, ProtocolError

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
