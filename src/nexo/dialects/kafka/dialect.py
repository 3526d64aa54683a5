"""Kafka's protocol as a dialect: whose first bytes are Kafka's, and who serves them."""

from __future__ import annotations

from collections.abc import Collection
from struct import Struct

from nexo.dialects.dialect import Claim, Dialect, HostPort, Speaker
from nexo.errors import NexoError
from nexo.model import Broker

_FIRST = Struct(">ihh")
_SMALLEST = 8
_HIGHEST_KEY = 127
_HIGHEST_VERSION = 30


class KafkaDialect(Dialect):
    """Kafka's clients offer no ALPN names: with TLS they need a port of their own."""

    name = "kafka"
    home = Broker.STREAM

    def claim(self, first: bytes) -> Broker | Claim:
        """A request begins with its length, which is below 16 MiB, a key and a version."""
        if first[0] != 0:
            return Claim.NO
        if len(first) < _FIRST.size:
            return Claim.MORE
        size, key, version = _FIRST.unpack_from(first)
        sound = size >= _SMALLEST and 0 <= version <= _HIGHEST_VERSION
        return self.home if sound and 0 <= key <= _HIGHEST_KEY else Claim.NO

    def refusal(self, first: bytes, error: NexoError) -> bytes:
        """Kafka has no message for it: the connection is just closed."""
        return b""

    def serves(self, brokers: Collection[Broker]) -> bool:
        return self.home in brokers

    def start(self, host: HostPort) -> Speaker:
        """Begin to serve. At the end, connections are closed: clients connect again."""
        # ruff: noqa: PLC0415 - the gate and the other brokers only need `claim`
        from nexo.dialects.kafka.request import KafkaState
        from nexo.dialects.kafka.session import KafkaSession
        from nexo.dialects.session import SessionSpeaker

        return SessionSpeaker(KafkaState(self, host), KafkaSession)
