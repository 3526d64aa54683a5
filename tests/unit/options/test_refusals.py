"""Errors say what was wrong in the words of the API, and are typed."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from nexo.errors import InvalidInput, InvalidOption
from nexo.options.queue import QueueOptions, options
from nexo.protocol import store, store_classic
from nexo.protocol.messages import pack, unpack
from nexo.protocol.ops import Op
from nexo.protocol.pubsub import Listing
from nexo.protocol.queue import PeekJobs, PushHead, decode, encode, encode_head


@pytest.mark.parametrize(
    ("type_", "message", "said"),
    [
        (PushHead, ["q", 1.5], "priority: expected int, got float"),
        (PushHead, ["q", 0, 0, 0, [None, 5]], r"keys\[1\]: expected str \| null, got int"),
        (PeekJobs, {"queue": "q", "limit": "x"}, "limit: expected int, got str"),
        (PeekJobs, {"queue": "q", "size": 1}, "unknown field 'size'; known are limit, offset"),
        (QueueOptions, {"persistence": "x"}, "persistence: .*'x'; use one of file_async, file_s"),
        (dict[str, int], {1: 1}, "Expected str, got int"),
    ],
)
def test_a_refusal_names_the_field_and_what_it_may_be(
    type_: Any, message: object, said: str
) -> None:
    with pytest.raises(InvalidOption, match=said):
        unpack(type_, msgspec.msgpack.encode(message))


def test_a_refused_queue_option_is_named_with_its_limits() -> None:  # SPEC D1
    with pytest.raises(InvalidOption, match="max_retries = -3: must be a whole number from 0"):
        options({"max_retries": -3})
    with pytest.raises(
        InvalidOption, match="backoff = 'x': must be one of none, fixed, exponential"
    ):
        options({"backoff": "x"})


def test_a_refused_store_field_is_named() -> None:
    with pytest.raises(InvalidInput, match="limit: expected int >= 1"):
        store.decode_request(Op.KEY_SCAN, msgspec.msgpack.encode(["", "", "", 0]))


@pytest.mark.parametrize("value", [2**70, "\udcff", object()])
def test_what_cannot_travel_is_a_typed_error(value: Any) -> None:
    with pytest.raises(InvalidInput):
        encode(PeekJobs("q", value))
    with pytest.raises(InvalidInput):
        encode_head(PushHead("q", value))
    with pytest.raises(InvalidInput):
        pack(Listing("#", value))
    with pytest.raises(InvalidInput):
        pack(store.Increment("k", value))


def test_a_store_key_must_be_text() -> None:
    for key in (1, None, b"x", "\udcff"):
        with pytest.raises(InvalidInput, match="a key"):
            store_classic.encode_map_key(key)  # type: ignore[arg-type]


def test_decoding_says_it_too() -> None:
    with pytest.raises(InvalidInput, match="queue: expected str, got int"):
        decode(msgspec.msgpack.encode([5]), PushHead)
