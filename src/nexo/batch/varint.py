"""Numbers of variable size, as in Kafka, Avro and Protobuf: seven bits a byte, lowest first.

Signed numbers are written as zigzag: 0, -1, 1, -2 … are 0, 1, 2, 3 …, so that small ones are short.
"""

from __future__ import annotations

_LONGEST_SHIFT = 63


def varint(value: int) -> bytes:
    """A signed number of at most 64 bits."""
    value = (value << 1) ^ (value >> 63)
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def read_unsigned(data: bytes, at: int) -> tuple[int, int]:
    """The number at ``at`` and where it ends; `ValueError` or `IndexError` if it has no end."""
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > _LONGEST_SHIFT:
            raise ValueError("a number is too long")
