"""The store's requests: bytes to use cases and back."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import asdict

from nexo.dialects.nexo.handlers import DirectHandler, Handler, Peer, handler_of
from nexo.dialects.nexo.replies import reply_packed
from nexo.model.store import LeaseAnswer
from nexo.protocol import store as wire
from nexo.protocol import store_classic as classic
from nexo.protocol.messages import pack
from nexo.protocol.ops import Op
from nexo.services.connection import Done
from nexo.services.store.commands import COMMANDS
from nexo.services.store.service import StoreService

_SET, _DELETE = COMMANDS["KEY_SET"], COMMANDS["KEY_DELETE"]


class StoreRequests:
    """All requests of the store."""

    def __init__(self, service: StoreService) -> None:
        self._service = service
        self.answers: Mapping[int, DirectHandler] = {
            Op.MAP_SET: self._map_set,
            Op.MAP_GET: self._map_get,
            Op.MAP_DEL: self._map_del,
        } | {op: self._answer(op) for op in wire.REQUESTS if not COMMANDS[op.name].blocks}
        self.handlers: Mapping[int, Handler] = {
            op: handler_of(answer) for op, answer in self.answers.items()
        } | {Op.LEASE_TAKE: self._take_lease}

    def _map_get(self, peer: Peer, payload: memoryview) -> bytes | None:
        return self._service.get(peer, classic.decode_map_key(payload))

    def _map_set(self, peer: Peer, payload: memoryview) -> bytes:
        key, options, value = classic.decode_map_set(payload)
        if options and (ttl_ms := classic.options_ttl_ms(options)) is not None:
            self._service.run(peer, _SET, key=key, value=value, ttl_ms=ttl_ms)
        elif self._service.classic_ttl_ms and not peer.said_hello:
            ttl_ms = self._service.classic_ttl_ms
            self._service.run(peer, _SET, key=key, value=value, ttl_ms=ttl_ms)
        else:
            self._service.put(peer, key, value)
        return b""

    def _map_del(self, peer: Peer, payload: memoryview) -> bytes:
        self._service.run(peer, _DELETE, keys=[classic.decode_map_key(payload)])
        return b""

    def _answer(self, op: Op) -> DirectHandler:
        command, run = COMMANDS[op.name], self._service.run

        def answer(peer: Peer, payload: memoryview) -> bytes:
            return pack(run(peer, command, **asdict(wire.decode_request(op, payload))))

        return answer

    def _take_lease(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        asked = asdict(wire.decode_request(Op.LEASE_TAKE, payload))
        done: Done[LeaseAnswer] = reply_packed(peer, request_id)
        self._service.take_lease(peer, request_id, **asked, done=done)
