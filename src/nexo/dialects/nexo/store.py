"""The store's requests: bytes to use cases and back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

from msgspec.structs import asdict

from nexo.dialects.nexo.handlers import DirectHandler, Handler, Peer, handler_of
from nexo.dialects.nexo.replies import reply_packed
from nexo.model.store import LeaseAnswer
from nexo.protocol import store as wire
from nexo.protocol import store_classic as classic
from nexo.protocol.messages import pack
from nexo.protocol.ops import Op
from nexo.services.connection import Done
from nexo.services.store.service import StoreService

UseCase: TypeAlias = Callable[..., object]


def _use_cases(store: StoreService) -> dict[Op, UseCase]:
    """The use case of each request that is answered at once; it gets the fields by name."""
    return {
        Op.KEY_SET: store.set,
        Op.KEY_DELETE: store.delete,
        Op.KEY_DELETE_IF: store.delete_if,
        Op.KEY_EXISTS: store.exists,
        Op.KEY_MGET: store.mget,
        Op.KEY_MSET: store.mset,
        Op.KEY_INCR: store.incr,
        Op.KEY_GETDEL: store.getdel,
        Op.KEY_EXPIRE: store.expire,
        Op.KEY_PERSIST: store.persist,
        Op.KEY_INSPECT: store.inspect,
        Op.KEY_SCAN: store.scan,
        Op.STORE_CLEAR: store.clear,
        Op.LEASE_RENEW: store.renew_lease,
        Op.LEASE_RELEASE: store.release_lease,
        Op.RATE_BUCKET: store.take_tokens,
        Op.RATE_WINDOW: store.count_in_window,
        Op.FIELDS_SET: store.maps.set,
        Op.FIELDS_GET: store.maps.get,
        Op.FIELDS_ALL: store.maps.all,
        Op.FIELDS_DELETE: store.maps.delete,
        Op.FIELDS_INCR: store.maps.incr,
        Op.FIELDS_COUNT: store.maps.length,
        Op.LIST_PUSH: store.lists.push,
        Op.LIST_POP: store.lists.pop,
        Op.LIST_RANGE: store.lists.range,
        Op.LIST_REPLACE: store.lists.replace,
        Op.LIST_TRIM: store.lists.trim,
        Op.LIST_REMOVE: store.lists.remove,
        Op.LIST_LENGTH: store.lists.length,
        Op.SET_ADD: store.sets.add,
        Op.SET_REMOVE: store.sets.remove,
        Op.SET_POP: lambda who, key, count, left: store.sets.pop(who, key, count),
        Op.SET_CONTAINS: store.sets.contains,
        Op.SET_MEMBERS: store.sets.members,
        Op.SET_SIZE: store.sets.length,
    }


class StoreRequests:
    """All requests of the store."""

    def __init__(self, service: StoreService) -> None:
        self._service = service
        self.answers: Mapping[int, DirectHandler] = {
            Op.MAP_SET: self._map_set,
            Op.MAP_GET: self._map_get,
            Op.MAP_DEL: self._map_del,
        } | {op: self._answer(op, use_case) for op, use_case in _use_cases(service).items()}
        self.handlers: Mapping[int, Handler] = {
            op: handler_of(answer) for op, answer in self.answers.items()
        } | {Op.LEASE_TAKE: self._take_lease}

    def _map_get(self, peer: Peer, payload: memoryview) -> bytes | None:
        return self._service.get(peer, classic.decode_map_key(payload))

    def _map_set(self, peer: Peer, payload: memoryview) -> bytes:
        key, options, value = classic.decode_map_set(payload)
        if options and (ttl_ms := classic.options_ttl_ms(options)) is not None:
            self._service.set(peer, key, value, ttl_ms=ttl_ms)
        elif self._service.classic_ttl_ms and not peer.said_hello:
            self._service.set(peer, key, value, ttl_ms=self._service.classic_ttl_ms)
        else:
            self._service.put(peer, key, value)
        return b""

    def _map_del(self, peer: Peer, payload: memoryview) -> bytes:
        self._service.delete(peer, [classic.decode_map_key(payload)])
        return b""

    def _answer(self, op: Op, use_case: UseCase) -> DirectHandler:
        def answer(peer: Peer, payload: memoryview) -> bytes:
            return pack(use_case(peer, **asdict(wire.decode_request(op, payload))))

        return answer

    def _take_lease(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        asked = asdict(wire.decode_request(Op.LEASE_TAKE, payload))
        done: Done[LeaseAnswer] = reply_packed(peer, request_id)
        self._service.take_lease(peer, request_id, **asked, done=done)
