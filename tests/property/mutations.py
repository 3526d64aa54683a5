"""Changes a fuzzer makes to bytes; the same seed makes the same changes."""

from __future__ import annotations

import random
from collections.abc import Sequence

_ODD = [
    b"\0", b"\xff", b"\x7f", b"\x80", b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\x80\0\0\0",
    b"\xdc\xff\xff", b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"\xc0", b"\xc1", b"\x90",
    b"\xcf" + b"\xff" * 8, b"\xcb\x7f\xf0\0\0\0\0\0\0", b"\xed\xa0\x80", b"NaN", b"1e999",
    b"\x81" * 40, b"\x91" * 3_000, b"[" * 3_000,
]  # fmt: skip
"""Lengths, counts, numbers and texts at the edge of what fits."""


def mutated(source: random.Random, seeds: Sequence[bytes]) -> bytes:
    """One of the seeds with a few changes."""
    data = bytearray(source.choice(seeds))
    for _ in range(source.randrange(1, 5)):
        _change(source, data, seeds)
    return bytes(data[:100_000])


def _change(source: random.Random, data: bytearray, seeds: Sequence[bytes]) -> None:
    at = source.randrange(len(data) + 1)
    match source.randrange(7):
        case 0 if data:
            data[source.randrange(len(data))] ^= 1 << source.randrange(8)
        case 1:
            del data[at:]
        case 2:
            del data[at : at + source.randrange(1, 9)]
        case 3:
            data[at:at] = source.choice(_ODD)
        case 4:
            odd = source.choice(_ODD)
            data[at : at + len(odd)] = odd
        case 5:
            other = source.choice(seeds)
            data[at:] = other[source.randrange(len(other) + 1) :]
        case _:
            data[at:at] = source.randbytes(source.randrange(1, 9))
