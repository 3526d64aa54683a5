"""Arithmetic on stored numbers.

A number is recognised by its content, whether stored as JSON, text or bytes: a client of
another protocol stores ``b"5"`` and expects to add to it. The sum keeps that type.
"""

from __future__ import annotations

import math

import msgspec

from nexo.errors import InvalidInput, WrongType
from nexo.values import JSON_PREFIX

_LIMIT = 1 << 63
_decode = msgspec.json.Decoder(int | float).decode

ZERO = JSON_PREFIX + b"0"


def add(value: bytes, by: int | float, what: str) -> tuple[int | float, bytes]:
    """The number in ``value`` plus ``by``, a 64-bit integer or a finite float; also as a value.

    Raises `WrongType` if ``value`` is not a number and `InvalidInput` if the sum is out of
    range; ``what`` names the place in the message.
    """
    try:
        total: int | float = _decode(value[1:]) + by
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise WrongType(f"{what} holds a value that is not a number") from None
    except OverflowError:
        raise InvalidInput(f"{what} holds a number too large to add to") from None
    if isinstance(total, int) and not -_LIMIT <= total < _LIMIT:
        raise InvalidInput(f"{what} would leave the range of 64-bit integers")
    if isinstance(total, float) and not math.isfinite(total):
        raise InvalidInput(f"{what} would no longer be a finite number")
    return total, value[:1] + repr(total).encode()
