"""The bounds of a file's columns, as Iceberg stores them: readers skip files by them."""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import Any

import pyarrow as pa

_LONG, _INT, _DOUBLE, _FLOAT = Struct("<q"), Struct("<i"), Struct("<d"), Struct("<f")
_MOST_CHARACTERS = 16
"""Of a text's or bytes' bound; the upper one is rounded up."""
_LAST = 0x10FFFF
_SURROGATES = range(0xD800, 0xE000)


def bounded(kind: pa.DataType) -> bool:
    """Whether columns of this type have bounds."""
    return _is_number(kind) or pa.types.is_boolean(kind) or _is_bytes(kind)


def _is_number(kind: pa.DataType) -> bool:
    tests = (
        pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal, pa.types.is_date32,
        pa.types.is_timestamp,
    )  # fmt: skip
    return any(test(kind) for test in tests)


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_binary(kind))


def bounds(kind: pa.DataType, chunks: Sequence[Any]) -> tuple[bytes, bytes | None] | None:
    """The lowest and the highest value of a column in all its row groups; None if not known.

    The upper one alone is None if no short text is above all of them.
    """
    found = [each.statistics for each in chunks if each.is_stats_set]
    known = [each for each in found if each.has_min_max]
    empty = sum(not each.has_min_max and not each.num_values for each in found)
    if not known or len(known) + empty < len(chunks):  # a long text, or only NaN
        return None
    if pa.types.is_decimal(kind):
        lowest, highest = _unscaled(known, "min_raw"), _unscaled(known, "max_raw")
        return _shortest(min(lowest)), _shortest(max(highest))
    low, high = min(each.min_raw for each in known), max(each.max_raw for each in known)
    if pa.types.is_string(kind):
        return _text_bounds(_bytes(low).decode(), _bytes(high).decode())
    if pa.types.is_binary(kind):
        return _bytes(low)[:_MOST_CHARACTERS], _above(_bytes(high))
    pack = _packer(kind)
    return pack(low), pack(high)


def _packer(kind: pa.DataType) -> Any:
    if pa.types.is_boolean(kind):
        return lambda value: bytes([value])
    if pa.types.is_floating(kind):
        return (_FLOAT if kind.bit_width == 32 else _DOUBLE).pack
    return (_INT if kind.bit_width == 32 else _LONG).pack


def _unscaled(known: Sequence[Any], name: str) -> list[int]:
    """Decimals as whole numbers; Parquet stores small ones as such, others as bytes."""
    raw = [getattr(each, name) for each in known]
    return [each if isinstance(each, int) else int.from_bytes(each, signed=True) for each in raw]


def _shortest(number: int) -> bytes:
    size = (number + (number < 0)).bit_length() // 8 + 1
    return number.to_bytes(size, signed=True)


def _bytes(raw: bytes | str) -> bytes:
    return raw.encode() if isinstance(raw, str) else raw


def _text_bounds(low: str, high: str) -> tuple[bytes, bytes | None]:
    upper = high if len(high) <= _MOST_CHARACTERS else _text_above(high[:_MOST_CHARACTERS])
    return low[:_MOST_CHARACTERS].encode(), None if upper is None else upper.encode()


def _text_above(start: str) -> str | None:
    """A text above all that begin with ``start``; None if there is none that is not longer."""
    for end in range(len(start), 0, -1):
        code = ord(start[end - 1]) + 1
        code = _SURROGATES.stop if code in _SURROGATES else code
        if code <= _LAST:
            return start[: end - 1] + chr(code)
    return None


def _above(high: bytes) -> bytes | None:
    if len(high) <= _MOST_CHARACTERS:
        return high
    start = high[:_MOST_CHARACTERS].rstrip(b"\xff")
    return start[:-1] + bytes([start[-1] + 1]) if start else None
