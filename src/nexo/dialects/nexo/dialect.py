"""Nexo's own protocol as a dialect: recognises its connections and serves them."""

from __future__ import annotations

from collections.abc import Sequence

from nexo.dialects.dialect import Claim, Dialect, HostPort, Speaker
from nexo.errors import NexoError
from nexo.model import Broker
from nexo.protocol.frames import HEADER_SIZE, FrameKind, Status, frame, pack_error, pack_str
from nexo.protocol.ops import BROKER_OF, Op

_HELLO_BYTES = HEADER_SIZE + 2
_BY_ALPN = {f"nexo-{broker.label}": broker for broker in Broker}
ALPN_NAMES = tuple(_BY_ALPN)


class NexoDialect(Dialect):
    """One port for all brokers; the first request says which one the connection is for."""

    name = "nexo"
    home = Broker.STORE

    def claim(self, first: bytes) -> Broker | Claim:
        """The broker that HELLO names, or the one that the first request's opcode belongs to."""
        if first[0] != FrameKind.REQUEST:
            return Claim.NO
        if len(first) < 2:
            return Claim.MORE
        if first[1] != Op.HELLO:
            return BROKER_OF[first[1]] or self.home
        if len(first) < _HELLO_BYTES:
            return Claim.MORE
        number = first[_HELLO_BYTES - 1]
        return Broker(number) if number in set(Broker) else self.home

    def claim_alpn(self, names: Sequence[str]) -> Broker | None:
        """The broker that ``nexo-store`` or another of our names stands for."""
        return next((_BY_ALPN[name] for name in names if name in _BY_ALPN), None)

    def refusal(self, first: bytes, error: NexoError) -> bytes:
        """A reply to the first request."""
        request_id = int.from_bytes(first[2:6], "big")
        if first[:2] == bytes((FrameKind.REQUEST, Op.HELLO)):
            return frame(FrameKind.RESPONSE, Status.ERR_CODED, request_id, pack_error(error))
        return frame(FrameKind.RESPONSE, Status.ERR, request_id, pack_str(error.message))

    def start(self, host: HostPort) -> Speaker:
        # ruff: noqa: PLC0415 - the gate only needs `claim`
        from nexo.dialects.nexo.session import NexoSession
        from nexo.dialects.nexo.state import NexoState
        from nexo.dialects.session import SessionSpeaker

        return SessionSpeaker(NexoState(self, host), NexoSession)
