"""Puts one wrong byte right again, so that a flipped bit costs nothing (SPEC Q4).

An entry and a sealed file have a CRC32C. Beside it they may have a *second sum*, the CRC32 of
their body: another polynomial, so both together are 64 independent bits. A CRC is linear: the
difference between the sum that is stored and that of the damaged bytes depends only on what was
changed, and where. Going back through the bytes, the second sum says for each place what would
have to be wrong there; where that is one byte, or two neighbours, and the CRC32C agrees, it is put
right. Anything wider stays damage: of random damage to a megabyte, one case in 10**8 would be
mistaken for a flipped byte.

A header is mended by its own check and the CRC32C, without a second sum.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from zlib import crc32

from google_crc32c import extend, value

from nexo.storage.header import MAGIC, SIZE, Flags, Header, body_sound, head_at

SUM_BYTES = 4
MAX_BYTES = 16 * 1024 * 1024
"""Longer entries are not mended: it takes a second or two for these."""
_POLYNOMIAL = 0xEDB88320
_TWO_BYTES = 1 << 16


def second_sum(*parts: bytes) -> bytes:
    """The second sum of a body, as it is stored."""
    crc = 0
    for part in parts:
        crc = crc32(part, crc)
    return crc.to_bytes(SUM_BYTES, "little")


def mended(data: bytes, stored: bytes, is_sound: Callable[[bytes], bool]) -> bytes | None:
    """``data`` with a wrong byte put right so that it has its second sum and ``is_sound``."""
    difference = crc32(data) ^ int.from_bytes(stored, "little")
    table, by_top = _tables()
    for at in range(len(data) - 1, -1, -1):
        index = by_top[difference >> 24]
        difference = (difference ^ table[index]) << 8 | index
        if 0 < difference < _TWO_BYTES:
            wrong = difference.to_bytes(2, "little")[: len(data) - at]
            right = bytes(a ^ b for a, b in zip(data[at : at + 2], wrong, strict=False))
            whole = data[:at] + right + data[at + len(right) :]
            if is_sound(whole):
                return whole
    return None


def mended_entry(
    region: bytes, fits: Callable[[Header], bool], stored: bytes | None = None
) -> bytes | None:
    """The entry at the start of ``region`` with a wrong byte put right.

    ``fits`` says whether a header may stand there; ``stored`` is the entry's second sum if it is
    kept elsewhere. None if more is wrong, or if it could be one entry or another.
    """
    raw = region[:SIZE]
    head = head_at(raw, 0)
    if head is not None:
        return _with_body(region[: head.length], head, stored) if fits(head) else None
    found = {
        raw + region[SIZE : head.length]
        for raw in _heads(raw)
        if (head := head_at(raw, 0)) is not None
        and fits(head)
        and body_sound(raw + region[SIZE : head.length], 0, head)
    }
    return found.pop() if len(found) == 1 else None


def _heads(raw: bytes) -> Iterator[bytes]:
    """The headers that differ from this one in a byte, or in their check, and pass it."""
    if raw[:2] != MAGIC:
        yield MAGIC + raw[2:]
        return
    check, rest = int.from_bytes(raw[2:4], "little"), raw[4:]
    yield MAGIC + (value(rest) & 0xFFFF).to_bytes(2, "little") + rest
    for at in range(len(rest)):
        before, after = rest[:at], rest[at + 1 :]
        for byte in range(256):
            changed = before + byte.to_bytes(1, "little") + after
            if value(changed) & 0xFFFF == check:
                yield raw[:4] + changed


def _with_body(entry: bytes, head: Header, stored: bytes | None) -> bytes | None:
    if len(entry) < head.length:
        return None
    start, body, tail = value(entry[16:SIZE]), entry[SIZE:], b""
    if head.flags & Flags.SUMMED:
        body, tail = body[:-SUM_BYTES], body[-SUM_BYTES:]
    elif stored is None:
        return None

    def is_sound(body: bytes) -> bool:
        return bool(extend(extend(start, body), tail) == head.crc)

    whole = mended(body, tail or stored or b"", is_sound)
    if whole is None and tail:
        whole, tail = body, second_sum(body)
        if not is_sound(whole):
            return None
    return None if whole is None else entry[:SIZE] + whole + tail


@cache
def _tables() -> tuple[list[int], list[int]]:
    """The change that a byte makes to a CRC32, and the byte by the top byte of its change."""
    table = [_step(byte) for byte in range(256)]
    by_top = sorted(range(256), key=lambda byte: table[byte] >> 24)
    return table, by_top


def _step(state: int) -> int:
    for _ in range(8):
        state = state >> 1 ^ (_POLYNOMIAL if state & 1 else 0)
    return state
