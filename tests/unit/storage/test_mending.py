"""One wrong byte is put right; more than that stays damage (SPEC Q4)."""

from __future__ import annotations

from random import Random

import pytest
from google_crc32c import value

from nexo.storage import mending
from nexo.storage.header import Flags, Header, seal, verify
from nexo.storage.mending import mended, mended_entry, second_sum

RANDOM = Random(7)
BODY = RANDOM.randbytes(2_000)


def entry(body: bytes = BODY, *, summed: bool = True) -> bytes:
    body += bytes(-(len(body) + 4) % 8)
    if summed:
        body += second_sum(body)
    else:
        body += bytes(4)
    flags = Flags.SUMMED if summed else 0
    head = seal([body], count=9, first_ms=1, last_ms=2, flags=flags, base_offset=41)
    return bytes(head) + body


def flipped(data: bytes, at: int, wrong: bytes) -> bytes:
    return (
        data[:at]
        + bytes(a ^ b for a, b in zip(data[at:], wrong, strict=False))
        + (data[at + len(wrong) :])
    )


def fits(head: Header) -> bool:
    return head.base_offset == 41


def test_any_bit_of_an_entry_may_be_wrong() -> None:
    whole = entry(BODY[:300])
    for at in range(len(whole)):
        for bit in (0, 3, 7) if at >= 64 else range(8):
            assert mended_entry(flipped(whole, at, bytes([1 << bit])), fits) == whole, (at, bit)


@pytest.mark.parametrize("wrong", [b"\xff", b"\x81\x7e", b"\x80\x01"])
def test_a_byte_or_two_neighbours_may_be_wrong(wrong: bytes) -> None:
    whole = entry()
    for at in RANDOM.sample(range(64, len(whole) - 5), 50):
        assert mended_entry(flipped(whole, at, wrong), fits) == whole


def test_what_follows_in_the_file_does_not_matter() -> None:
    whole = entry(BODY[:64])
    for at in range(len(whole)):
        assert mended_entry(flipped(whole, at, b"\x10") + BODY, fits) == whole


def test_the_second_sum_may_be_elsewhere() -> None:
    whole = entry(summed=False)
    assert mended_entry(flipped(whole, 999, b"\x04"), fits, second_sum(whole[64:])) == whole
    assert mended_entry(flipped(whole, 999, b"\x04"), fits, b"\x01\x02\x03\x04") is None
    assert mended_entry(flipped(whole, 999, b"\x04"), fits) is None
    assert mended_entry(flipped(whole, 20, b"\x04"), fits) == whole, "a header needs none"


@pytest.mark.parametrize(
    "wrong", [b"\x01\x00\x01", bytes([1, *[0] * 700, 1]), b"\xff" * 16, RANDOM.randbytes(512)]
)
def test_wider_damage_is_not_guessed_at(wrong: bytes) -> None:
    whole = entry()
    for at in RANDOM.sample(range(64, 1_200), 20):
        assert mended_entry(flipped(whole, at, wrong), fits) is None


def test_zeros_and_other_bytes_are_no_entry() -> None:
    assert mended_entry(bytes(4_096), fits) is None
    assert mended_entry(RANDOM.randbytes(4_096), fits) is None
    assert mended_entry(b"", fits) is None


def test_an_entry_of_another_place_is_not_taken() -> None:
    assert mended_entry(flipped(entry(), 100, b"\x01"), lambda head: head.base_offset == 42) is None


def test_what_is_mended_is_what_was_written_or_nothing() -> None:
    """Whatever the damage: never other bytes than those that were written."""
    whole = entry(BODY[:200])
    for _ in range(300):
        data = bytearray(whole)
        for _ in range(RANDOM.randint(1, 4)):
            data[RANDOM.randrange(len(data))] ^= 1 << RANDOM.randrange(8)
        found = mended_entry(bytes(data), fits)
        assert found in (None, whole)
        if found is not None:
            verify(found)


def test_bytes_without_a_header_are_mended_by_any_other_check() -> None:
    crc = value(BODY)
    for at in (0, 1, 1_000, 1_999):
        damaged = flipped(BODY, at, b"\x20")
        assert mended(damaged, second_sum(BODY), lambda data: value(data) == crc) == BODY
    assert mended(BODY[:-1] + b"\x00", second_sum(BODY), lambda _: False) is None


def test_the_tables_undo_a_crc32_byte_by_byte() -> None:
    table, by_top = mending._tables()
    assert sorted(by_top) == list(range(256))
    assert all(by_top[table[byte] >> 24] == byte for byte in range(256))
