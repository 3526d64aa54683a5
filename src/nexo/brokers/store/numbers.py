"""Arithmetic on stored numbers."""

from __future__ import annotations

import math

import msgspec

from nexo.errors import InvalidInput, WrongType

_JSON = b"\x02"
_LIMIT = 1 << 63
_decode = msgspec.json.Decoder(int | float).decode


def add(value: bytes, by: int | float, what: str) -> int | float:
    """The number in ``value`` plus ``by``: an integer of 64 bits, or a finite float.

    Raises `WrongType` if ``value`` is no number and `InvalidInput` if the sum is out of range;
    ``what`` names the place in the message.
    """
    try:
        if value[:1] != _JSON:
            raise WrongType(f"{what} holds text or bytes, not a number{_hint(value)}")
        total: int | float = _decode(value[1:]) + by
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise WrongType(f"{what} holds JSON that is not a number") from None
    except OverflowError:
        raise InvalidInput(f"{what} holds a number too large to add to") from None
    if isinstance(total, int) and not -_LIMIT <= total < _LIMIT:
        raise InvalidInput(f"{what} would leave the range of 64-bit integers")
    if isinstance(total, float) and not math.isfinite(total):
        raise InvalidInput(f"{what} would no longer be a finite number")
    return total


def _hint(value: bytes) -> str:
    """How to store what looks like a number as one."""
    try:
        _decode(value[1:])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ""
    return ": store it as one, with set(key, 1) or, on the command line, --as json"


def encode(number: int | float) -> bytes:
    """A number as a stored value."""
    return _JSON + repr(number).encode()


ZERO = encode(0)
