"""Whatever bytes arrive, the service answers or refuses them, and goes on (SPEC A9)."""

from __future__ import annotations

from contextlib import suppress

from hypothesis import given, settings
from hypothesis import strategies as st

from nexo.errors import NexoError
from nexo.model.pubsub import Subscribe, Will
from nexo.protocol.messages import pack
from nexo.protocol.messages import pack_headed as options
from nexo.protocol.ops import Op
from nexo.protocol.pubsub import Listing, Publish, message_frame
from tests.unit.brokers.pubsub.desk import Desk

SOUND = [
    message_frame(b"a/b", b"\0x", 1),
    options(Publish(True, 5)) + message_frame(b"a/b", b"\0x", 1),
    pack(Subscribe("a/+")),
    pack(Will("a", b"\0")),
    pack(Listing()),
    b"\0\0\0\1a\0\0\0\2{}\0x",
]
OPS = [op for op in Op if op in range(0x20, 0x30) or op in range(0x80, 0x90)]


@st.composite
def payloads(draw: st.DrawFn) -> bytes:
    """Random bytes, or a sound payload with some of its bytes changed."""
    if draw(st.booleans()):
        return draw(st.binary(max_size=40))
    payload = bytearray(draw(st.sampled_from(SOUND)))
    for at in draw(st.lists(st.integers(0, len(payload) - 1), max_size=3)):
        payload[at] = draw(st.integers(0, 255))
    return bytes(payload)


@settings(max_examples=300)
@given(st.lists(st.tuples(st.sampled_from(OPS), payloads()), max_size=10))
def test_any_bytes_are_answered_or_refused(requests: list[tuple[Op, bytes]]) -> None:
    desk = Desk()
    client = desk.client()
    for op, payload in requests:
        with suppress(NexoError):
            client.ask(op, payload)
    client.close()
    listener = desk.client()
    listener.subscribe("still/+")
    assert desk.client().publish("still/here", b"x") == 1
    assert listener.received == [("still/here", b"x")]
    desk.crash()
