"""Frames, and fields taken off a payload."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nexo.errors import ProtocolError
from nexo.protocol.frames import (
    HEADER,
    HEADER_SIZE,
    FieldReader,
    FrameKind,
    Status,
    frame,
    pack_str,
)


def test_a_frame_is_a_ten_byte_header_and_its_payload() -> None:
    made = frame(FrameKind.REQUEST, 0x03, 7, b"abc")
    assert made == bytes.fromhex("01 03 00000007 00000003") + b"abc"
    assert HEADER_SIZE == 10
    assert HEADER.unpack_from(made) == (1, 3, 7, 3)


def test_the_numbers_of_the_existing_client_hold() -> None:
    assert (FrameKind.REQUEST, FrameKind.RESPONSE, FrameKind.PUSH) == (1, 2, 3)
    assert (Status.OK, Status.ERR, Status.NULL, Status.DATA) == (0, 1, 2, 3)


def test_fields_come_off_in_order() -> None:
    payload = pack_str("kéy") + b"\x05" + (6).to_bytes(4, "big") + (7).to_bytes(8, "big") + b"tail"
    reader = FieldReader(payload)
    assert (reader.text(), reader.u8(), reader.u32(), reader.u64()) == ("kéy", 5, 6, 7)
    assert bytes(reader.rest()) == b"tail"
    reader.end()


def test_rest_may_be_empty() -> None:
    assert bytes(FieldReader(b"").rest()) == b""


def test_a_text_may_be_empty_and_hold_any_unicode() -> None:
    assert FieldReader(pack_str("")).text() == ""
    assert FieldReader(pack_str("🚀\x00")).text() == "🚀\x00"


@pytest.mark.parametrize(
    "read", [FieldReader.u8, FieldReader.u32, FieldReader.u64, FieldReader.text]
)
def test_a_field_cut_short_is_a_protocol_error(read: object) -> None:
    assert callable(read)
    for payload in (b"", b"\x00" * 3 if read is not FieldReader.u8 else b""):
        with pytest.raises(ProtocolError, match="past the end"):
            read(FieldReader(payload))


def test_a_length_beyond_the_payload_is_refused_without_allocating() -> None:
    with pytest.raises(ProtocolError, match="4294967295 bytes"):
        FieldReader(b"\xff\xff\xff\xff" + b"x").text()


def test_text_must_be_utf8() -> None:
    with pytest.raises(ProtocolError, match="UTF-8"):
        FieldReader(b"\x00\x00\x00\x02\xff\xfe").text()


def test_bytes_left_over_are_refused_where_nothing_may_follow() -> None:
    reader = FieldReader(b"ab")
    reader.u8()
    with pytest.raises(ProtocolError, match="1 extra bytes"):
        reader.end()


def test_a_reader_does_not_copy() -> None:
    payload = bytearray(b"abc")
    view = FieldReader(payload).rest()
    payload[0] = ord("x")
    assert bytes(view) == b"xbc"


@given(st.binary(max_size=64), st.lists(st.sampled_from(["u8", "u32", "u64", "text"]), max_size=8))
def test_any_bytes_give_fields_or_a_protocol_error(payload: bytes, plan: list[str]) -> None:
    reader = FieldReader(payload)
    try:
        for field in plan:
            getattr(reader, field)()
    except ProtocolError:
        return
    assert len(reader.rest()) <= len(payload)
