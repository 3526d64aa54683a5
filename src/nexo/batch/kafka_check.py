"""Checks that the records of Kafka's batches can be read; see `nexo.batch.kafka`.

A batch whose records are garbage has a valid CRC if its producer made it so. Kafka's clients stop
at such a batch for good, and without an error. What is compressed is unpacked piece by piece, so
that a batch that unpacks to a thousand times its size takes neither memory nor, at once, time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from nexo.batch.compression import unpack_kafka_pieces
from nexo.batch.kafka import COMPRESSION, HEAD_SIZE, KafkaHead
from nexo.batch.varint import read_unsigned
from nexo.errors import Corrupt, InvalidInput, PayloadTooLarge
from nexo.model import Buffer

PIECE_BYTES = 256 * 1024
_RECORD_COST = 128
"""The work of one record, in bytes."""
_LONGEST_LENGTH = 5
_FEW, _LOOK_AGAIN = 8, 64
"""Fewer records are not worth comparing at once; if they are not alike, it is tried again later."""
_HIGH = bytes(range(0x80, 0x100))
"""The bytes of a number but for its last."""
_MORE = bytes(range(0x80, 0x100)) * 2
"""Makes of a number's last byte one that others follow."""
_ONE_BYTE, _BLOCK = 64, 8_192
"""Numbers below have one byte, and two; of those above, the third changes once per block."""
_LOW = bytes(number << 1 & 0x7F for number in range(_BLOCK))
_MIDDLE = bytes(number >> 6 for number in range(_BLOCK))


_MOST_NAMED = 10_000


class UnkeyedRecords(InvalidInput):
    """Records without a key, in a compacted topic; of very many, the first."""

    def __init__(self, indexes: Sequence[int]) -> None:
        super().__init__("a compacted topic takes no record without a key")
        self.indexes = indexes[:_MOST_NAMED]


def check_records(
    head: KafkaHead, batch: Buffer, max_bytes: int, *, keyed: bool = False
) -> Iterator[int]:
    """Check all records, in steps: what each step yields says how much work it was.

    `Corrupt` if they are malformed, `PayloadTooLarge` if they unpack to more than ``max_bytes``,
    `UnkeyedRecords` if they must be ``keyed`` and some have no key.
    """
    kind, packed = head.attributes & COMPRESSION, bytes(batch[HEAD_SIZE : head.size])
    pieces = unpack_kafka_pieces(kind, packed, PIECE_BYTES) if kind else _pieces(packed)
    unkeyed: list[int] | None = [] if keyed else None
    try:
        yield from _walked(pieces, head.count, max_bytes, unkeyed)
    except (IndexError, ValueError):
        raise Corrupt("the records of a Kafka batch are malformed") from None
    if unkeyed:
        raise UnkeyedRecords(unkeyed)


def _pieces(data: bytes) -> Iterable[bytes]:
    if len(data) <= PIECE_BYTES:
        return (data,)
    return (data[at : at + PIECE_BYTES] for at in range(0, len(data), PIECE_BYTES))


def _walked(
    pieces: Iterable[bytes], count: int, max_bytes: int, unkeyed: list[int] | None
) -> Iterator[int]:
    index = needed = size = total = 0
    rest: list[bytes] = []
    seen: set[bytes] = set()
    for piece in pieces:
        rest.append(piece)
        size += len(piece)
        total += len(piece)
        if total > max_bytes:
            raise PayloadTooLarge(f"a batch unpacks to more than {max_bytes:,} bytes")
        before = index
        if size >= needed:
            data = b"".join(rest) if len(rest) > 1 else piece
            at, index, needed = _walk(data, index, count, seen, unkeyed)
            rest = [data[at:]]
            size = len(data) - at
        yield len(piece) + _RECORD_COST * (index - before)
    if index != count or size:
        raise ValueError("there are more or fewer bytes than records")


def _walk(  # noqa: PLR0912, PLR0915 - runs once per record that clients send
    data: bytes, index: int, count: int, seen: set[bytes], unkeyed: list[int] | None
) -> tuple[int, int, int]:
    """Go through the whole records in ``data``.

    Returns where the first record begins that is not all there, its number, and how many bytes
    it needs.
    """
    at, here, look_at = 0, len(data), index
    while index < count:
        start = at
        if here - at < _LONGEST_LENGTH and not _has_length(data, at):
            return start, index, here - at + 1
        length = data[at]
        at += 1
        if length > 0x7F:
            more = data[at]
            at += 1
            length += (more << 7) - 0x80
            if more > 0x7F:
                length, at = read_unsigned(data, at - 2)
        time_at = at + 1  # after attributes, which mean nothing
        end = at + (length >> 1)
        if end > here:
            return start, index, end - start
        at = time_at
        while data[at] > 0x7F:
            at += 1
        number_at = at = at + 1
        number = data[at]
        at += 1
        if number > 0x7F:
            more = data[at]
            at += 1
            number += (more << 7) - 0x80
            if more > 0x7F:
                number, at = read_unsigned(data, at - 2)
        if number != index << 1:
            raise ValueError("records are not numbered one after another")
        key_at = at
        size = data[at]
        at += 1
        if size > 0x7F:
            size, at = read_unsigned(data, at - 1)
        key_end = at
        if size & 1:
            if unkeyed is not None:
                unkeyed.append(index)
        else:
            at += size >> 1
        value_at = at
        size = data[at]
        at += 1
        if size > 0x7F:
            more = data[at]
            at += 1
            size += (more << 7) - 0x80
            if more > 0x7F:
                size, at = read_unsigned(data, at - 2)
        value_end = at
        if not size & 1:
            at += size >> 1
        if data[at]:
            headers = data[at:end]
            if headers not in seen:
                _check_headers(headers)
                seen.add(headers)
            look_at = index + 2
            at = max(at, end)
        else:
            at += 1
        if at != end or length & 1:
            raise ValueError("a record is longer or shorter than its length")
        index += 1
        if index >= look_at and at < here and data[at] == data[start]:
            same = (
                *range(time_at - 1 - start),
                *range(key_at - start, key_end - start),
                *range(value_at - start, value_end - start),
                at - 1 - start,
            )
            most = min(count - index, (here - at) // (at - start))
            alike = _alike(data, start, at, time_at, number_at, key_at, same, index, most)
            if unkeyed and unkeyed[-1] == index - 1:
                unkeyed.extend(range(index, index + alike))
            index += alike
            at += alike * (at - start)
            look_at = index + (1 if alike else _LOOK_AGAIN)
    return at, index, 0


def _alike(
    data: bytes,
    start: int,
    at: int,
    time_at: int,
    number_at: int,
    number_end: int,
    same: tuple[int, ...],
    index: int,
    most: int,
) -> int:
    """How many records from ``at`` on, with the number ``index``, are laid out as the last one.

    Records of one size have their lengths at the same distances, so a whole column of them is
    compared at once: this takes a tenth of the time, and most producers' values are alike.
    ``same`` are the places of bytes that must be the same in all.
    """
    block = _ONE_BYTE if index < _ONE_BYTE else _BLOCK - index % _BLOCK + index
    step, count = at - start, min(most, block - index)
    if count < _FEW:
        return 0
    for place in same:
        found = data[at + place : at + count * step : step]
        if found.count(data[start + place]) != count:
            count = len(found) - len(found.lstrip(data[start + place : start + place + 1]))
            if count < _FEW:
                return 0
    end = at + count * step
    for place in range(time_at - start, number_at - start - 1):
        if data[at + place : end : step].translate(None, _HIGH):
            return 0
    if not data[at + number_at - start - 1 : end : step].isascii():
        return 0
    return (
        count
        if _numbered(data, at + number_at - start, end, step, index, number_end - number_at)
        else 0
    )


def _numbered(data: bytes, at: int, end: int, step: int, index: int, size: int) -> bool:
    """Whether numbers of so many bytes ascend by one from ``index`` on."""
    count = len(range(at, end, step))
    first = index % _BLOCK
    low, middle = _LOW[first : first + count], _MIDDLE[first : first + count]
    if size == 1:
        return data[at:end:step] == low
    if data[at:end:step] != low.translate(_MORE):
        return False
    if size == 2:
        return data[at + 1 : end : step] == middle
    top = bytes([index // _BLOCK])
    return (
        size == 3
        and data[at + 1 : end : step] == middle.translate(_MORE)
        and data[at + 2 : end : step] == top * count
    )


def _has_length(data: bytes, at: int) -> bool:
    """Whether the number at ``at`` ends within ``data``."""
    return any(byte < 0x80 for byte in data[at : at + _LONGEST_LENGTH])


def _check_headers(data: bytes) -> None:
    count, at = read_unsigned(data, 0)
    if count & 1 or count >> 1 > len(data):
        raise ValueError("there are more headers than bytes")
    for _ in range(count >> 1):
        size, at = read_unsigned(data, at)
        if size & 1:
            raise ValueError("a header has no name")
        size, at = read_unsigned(data, at + (size >> 1))
        if not size & 1:
            at += size >> 1
    if at != len(data):
        raise ValueError("headers do not end with their record")
