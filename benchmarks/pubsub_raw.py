"""Fan-out over raw sockets: the server's work, with next to nothing at the clients' ends.

Every peer is spoken to in its own protocol. Deliveries are counted by their bytes, as
all messages of a peer have the same size, so that receiving costs the same for all.
"""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass

from nexo.model import Broker
from nexo.model.pubsub import Subscribe
from nexo.protocol.frames import HEADER_SIZE, FrameKind, frame
from nexo.protocol.hello import Hello, encode_hello
from nexo.protocol.messages import pack
from nexo.protocol.ops import Op
from nexo.protocol.pubsub import message_frame

TOPIC = b"bench/fan/out"
PAYLOAD = b"x" * 100
_STALLED_S = 20.0


@dataclass(frozen=True)
class Dialect:
    """How to speak to one server."""

    greeting: bytes
    subscribe: bytes
    answers: bytes
    """What the last bytes of its answer to greeting and subscription look like."""
    burst: Callable[[int], bytes]
    """That many publishes, to be written at once."""
    delivery_bytes: int
    """The size of one message as a subscriber gets it."""


def _nexo_burst(count: int) -> bytes:
    run = message_frame(TOPIC, b"\0" + PAYLOAD, 1_700_000_000_000) * count
    return frame(FrameKind.REQUEST, Op.PUBLISH_RUN, 7, run)


def _bulk(*parts: bytes) -> bytes:
    body = b"".join(b"$%d\r\n%s\r\n" % (len(part), part) for part in parts)
    return b"*%d\r\n" % len(parts) + body


def _mqtt(kind: int, body: bytes) -> bytes:
    size, length = len(body), b""
    while size >= 128:
        length += bytes((size & 127 | 128,))
        size >>= 7
    return bytes((kind,)) + length + bytes((size,)) + body


def _mqtt_text(text: bytes) -> bytes:
    return len(text).to_bytes(2, "big") + text


_NATS_PUB = b"PUB bench.fan.out %d\r\n%s\r\n" % (len(PAYLOAD), PAYLOAD)
_NATS_MSG = b"MSG bench.fan.out 1 %d\r\n%s\r\n" % (len(PAYLOAD), PAYLOAD)
_MQTT_MSG = _mqtt(0x30, _mqtt_text(TOPIC) + PAYLOAD)
_MQTT_CONNECT = _mqtt(0x10, _mqtt_text(b"MQTT") + b"\x04\x02\x00\x00" + _mqtt_text(b""))

DIALECTS = {
    "nexo": Dialect(
        frame(FrameKind.REQUEST, Op.HELLO, 0, encode_hello(Broker.PUBSUB, Hello("bench"))),
        frame(FrameKind.REQUEST, Op.SUBSCRIBE, 1, pack(Subscribe(TOPIC.decode()))),
        frame(FrameKind.RESPONSE, 0, 1),
        _nexo_burst,
        HEADER_SIZE + 8 + 4 + len(TOPIC) + 1 + len(PAYLOAD),
    ),
    "redis": Dialect(
        b"",
        _bulk(b"SUBSCRIBE", TOPIC),
        b":1\r\n",
        lambda count: _bulk(b"PUBLISH", TOPIC, PAYLOAD) * count,
        len(_bulk(b"message", TOPIC, PAYLOAD)),
    ),
    "nats": Dialect(
        b'CONNECT {"verbose":false,"pedantic":false}\r\n',
        b"SUB bench.fan.out 1\r\nPING\r\n",
        b"PONG\r\n",
        lambda count: _NATS_PUB * count,
        len(_NATS_MSG),
    ),
    "mosquitto": Dialect(
        _MQTT_CONNECT,
        _mqtt(0x82, b"\x00\x01" + _mqtt_text(TOPIC) + b"\x00"),
        b"\x90\x03\x00\x01\x00",
        lambda count: _MQTT_MSG * count,
        len(_MQTT_MSG),
    ),
}


class FanOut(AbstractContextManager["FanOut"]):
    """One publisher and many subscribers of one server, driven by one thread."""

    def __init__(self, dialect: Dialect, port: int, subscribers: int) -> None:
        self._dialect = dialect
        self._stack = ExitStack()
        self._poll = self._stack.enter_context(select.epoll())
        self._buffer = bytearray(1 << 20)
        self._publisher = self._connect(port)
        self._publisher.sendall(dialect.greeting)
        self._publisher.settimeout(_STALLED_S)
        self._readers = {
            s.fileno(): s for s in (self._subscriber(port) for _ in range(subscribers))
        }
        for number in self._readers:
            self._poll.register(number, select.EPOLLIN)
        self._poll.register(self._publisher.fileno(), select.EPOLLIN)

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def _connect(self, port: int) -> socket.socket:
        sock = self._stack.enter_context(socket.create_connection(("127.0.0.1", port)))
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return sock

    def _subscriber(self, port: int) -> socket.socket:
        sock = self._connect(port)
        sock.settimeout(_STALLED_S)
        sock.sendall(self._dialect.greeting + self._dialect.subscribe)
        heard = b""
        while not heard.endswith(self._dialect.answers):
            heard += sock.recv(4096)
        return sock

    def deliver(self, bursts: int, size: int, ahead: int) -> float:
        """Deliveries per second of ``bursts`` times ``size`` messages.

        At most ``ahead`` bursts are under way, so that no server has a reason to drop any.
        """
        burst = self._dialect.burst(size)
        burst_bytes = size * len(self._readers) * self._dialect.delivery_bytes
        received = sent = 0
        start = time.perf_counter()
        while received < bursts * burst_bytes:
            while sent < bursts and (sent - ahead) * burst_bytes < received:
                self._publisher.sendall(burst)
                sent += 1
            received += self._receive()
        return bursts * size * len(self._readers) / (time.perf_counter() - start)

    def _receive(self) -> int:
        ready = self._poll.poll(_STALLED_S)
        if not ready:
            raise TimeoutError("deliveries are missing")
        received = 0
        for number, _ in ready:
            reader = self._readers.get(number)
            size = (reader or self._publisher).recv_into(self._buffer)
            if not size:
                raise ConnectionError("the server closed a connection")
            if reader is not None:  # else these are the answers to its publishes
                received += size
        return received
