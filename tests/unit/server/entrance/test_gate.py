"""Where the gate sends a connection, judged by its first bytes."""

from __future__ import annotations

import ssl

import pytest

from nexo.model import Broker
from nexo.protocol.frames import FrameKind, frame
from nexo.protocol.hello import Hello, encode_hello
from nexo.protocol.ops import Op
from nexo.server.entrance import gate


def route(first: bytes) -> Broker | None:
    found = gate.route(first)
    return None if found is None else found[1]


def client_hello(*names: str) -> bytes:
    context = ssl.create_default_context()
    if names:
        context.set_alpn_protocols(list(names))
    outgoing = ssl.MemoryBIO()
    tls = context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="localhost")
    with pytest.raises(ssl.SSLWantReadError):
        tls.do_handshake()
    return outgoing.read()


@pytest.mark.parametrize(
    ("op", "broker"),
    [
        (Op.MAP_GET, Broker.STORE),
        (Op.Q_PUSH, Broker.QUEUE),
        (Op.SUB, Broker.PUBSUB),
        (Op.S_PUB, Broker.STREAM),
        (Op.ECHO, Broker.STORE),
    ],
)
def test_a_first_request_goes_to_the_broker_of_its_opcode(op: Op, broker: Broker) -> None:
    assert route(frame(FrameKind.REQUEST, op, 1)) is broker


@pytest.mark.parametrize("broker", list(Broker))
def test_hello_names_its_broker(broker: Broker) -> None:
    first = frame(FrameKind.REQUEST, Op.HELLO, 0, encode_hello(broker, Hello(client="x")))
    assert route(first) is broker
    assert all(route(first[:size]) is None for size in range(1, 12))


@pytest.mark.parametrize("broker", list(Broker))
def test_a_tls_client_hello_names_its_broker_by_alpn(broker: Broker) -> None:
    first = client_hello("h2", f"nexo-{broker.label}")
    assert route(first) is broker
    assert route(first[:100]) is None


def test_tls_without_a_known_name_and_garbage_go_to_the_default() -> None:
    assert route(client_hello()) is Broker.STORE
    assert route(b"\x16\x03\x01\x00\x05hello") is Broker.STORE
    assert route(b"GET / HTTP/1.1") is Broker.STORE
    assert route(frame(FrameKind.REQUEST, Op.HELLO, 0, b"\x01\x63")) is Broker.STORE
