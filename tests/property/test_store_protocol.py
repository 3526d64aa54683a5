"""Whatever bytes arrive, the store answers or refuses with an error of ours (SPEC B1, A9)."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nexo.errors import NexoError
from nexo.protocol import store as wire
from nexo.protocol import store_classic as classic
from nexo.protocol.frames import pack_str
from nexo.protocol.ops import Op
from tests.unit.services.store.test_service import Session, StoreRuntime

OPS = st.sampled_from([Op.MAP_SET, Op.MAP_GET, Op.MAP_DEL, *wire.REQUESTS])
ATOMS: st.SearchStrategy[Any] = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**63), 2**64 - 1), st.floats(), st.text(max_size=4),
    st.binary(max_size=4), st.sampled_from(["k", b"\x01v", {"f": b"\x021"}]),
)  # fmt: skip
FIELDS = st.lists(ATOMS | st.lists(ATOMS, max_size=3), max_size=8)


@settings(max_examples=300)
@given(st.lists(st.tuples(OPS, st.binary(max_size=40) | FIELDS), max_size=20))
def test_no_request_does_harm(requests: list[tuple[Op, bytes | list[Any]]]) -> None:
    session = Session(StoreRuntime(store_max_bytes=10_000))
    for op, content in requests:
        payload = content if isinstance(content, bytes) else msgspec.msgpack.encode(content)
        with suppress(NexoError):
            session.raw(op, payload)
    assert session.service.status()["used_bytes"] <= 10_000
    session.set("still here", b"\x01yes")
    assert session.get("still here") == b"\x01yes"


@given(st.text(min_size=1, max_size=50), st.binary(max_size=50).map(b"\0".__add__))
def test_set_and_get_are_read_as_they_are_written(key: str, value: bytes) -> None:
    payload = classic.encode_map_set(key, value)
    found, options, content = classic.decode_map_set(memoryview(payload))
    assert (found, bytes(options), content) == (key, b"", value)
    assert classic.decode_map_key(memoryview(classic.encode_map_key(key))) == key
    for size in range(len(payload) - len(value) + 1):
        with pytest.raises(NexoError):
            classic.decode_map_set(memoryview(payload[:size]))


@given(st.binary(max_size=20))
def test_options_give_a_ttl_or_an_error_of_ours(options: bytes) -> None:
    with suppress(NexoError):
        assert (classic.options_ttl_ms(options) or 1) > 0


@given(st.floats(min_value=0, exclude_min=True, max_value=1e9))
def test_a_ttl_is_never_rounded_to_nothing_nor_far(seconds: float) -> None:
    ttl_ms = classic.ttl_to_ms(seconds)
    assert ttl_ms >= 1
    assert -0.001 <= ttl_ms - seconds * 1000 <= 1


def test_a_key_is_framed_as_the_table_of_opcodes_says() -> None:
    assert classic.encode_map_key("é") == pack_str("é")
