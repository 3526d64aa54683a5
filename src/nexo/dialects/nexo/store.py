"""The store's requests: bytes to use cases and back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from nexo.brokers.store.coordination import LeaseAnswer
from nexo.dialects.nexo.handlers import Answer, Handler, Peer, handler_of
from nexo.errors import NexoError
from nexo.protocol import store as wire
from nexo.protocol import store_classic as classic
from nexo.protocol.ops import Op
from nexo.services.connection import Connection
from nexo.services.store.service import StoreService

Run: TypeAlias = Callable[[StoreService, Connection, Any], object]

_REPLIES: dict[Op, Callable[[Any], object]] = {
    Op.KEY_SET: lambda result: wire.SetReply(result.done, result.previous),
    Op.KEY_INSPECT: lambda info: (
        info and wire.KeyInfoReply(info.kind, info.items, info.size_bytes, info.ttl_ms)
    ),
    Op.KEY_SCAN: lambda page: wire.KeysReply(page.keys, page.cursor),
    Op.RATE_BUCKET: lambda rate: wire.RateReply(rate.allowed, rate.remaining, rate.retry_ms),
    Op.RATE_WINDOW: lambda rate: wire.RateReply(rate.allowed, rate.remaining, rate.retry_ms),
}
"""Converts results that are not replies already."""

_RUNS: dict[Op, Run] = {
    Op.KEY_SET: lambda store, who, asked: store.set(
        who,
        asked.key,
        asked.value,
        ttl_ms=asked.ttl_ms,
        keep_ttl=asked.keep_ttl,
        if_absent=asked.if_absent,
        if_equal=asked.if_equal,
        get_previous=asked.get_previous,
    ),
    Op.KEY_DELETE: lambda store, who, asked: store.delete(who, asked.keys),
    Op.KEY_DELETE_IF: lambda store, who, asked: store.delete_if(who, asked.key, asked.if_equal),
    Op.KEY_EXISTS: lambda store, who, asked: store.exists(who, asked.keys),
    Op.KEY_MGET: lambda store, who, asked: store.mget(who, asked.keys),
    Op.KEY_MSET: lambda store, who, asked: store.mset(who, asked.values, asked.ttl_ms),
    Op.KEY_INCR: lambda store, who, asked: store.incr(who, asked.key, asked.by, asked.ttl_ms),
    Op.KEY_GETDEL: lambda store, who, asked: store.getdel(who, asked.key),
    Op.KEY_EXPIRE: lambda store, who, asked: store.expire(who, asked.key, asked.ttl_ms),
    Op.KEY_PERSIST: lambda store, who, asked: store.persist(who, asked.key),
    Op.KEY_INSPECT: lambda store, who, asked: store.inspect(who, asked.key),
    Op.KEY_SCAN: lambda store, who, asked: store.scan(
        who, asked.prefix, asked.glob, asked.cursor, asked.limit
    ),
    Op.STORE_CLEAR: lambda store, who, asked: store.clear(who),
    Op.LEASE_RENEW: lambda store, who, asked: store.renew_lease(
        who, asked.key, asked.holder, asked.ttl_ms
    ),
    Op.LEASE_RELEASE: lambda store, who, asked: store.release_lease(who, asked.key, asked.holder),
    Op.RATE_BUCKET: lambda store, who, asked: store.take_tokens(
        who, asked.key, asked.capacity, asked.per_second, asked.cost
    ),
    Op.RATE_WINDOW: lambda store, who, asked: store.count_in_window(
        who, asked.key, asked.limit, asked.window_ms, asked.cost
    ),
    Op.FIELDS_SET: lambda store, who, asked: store.maps.set(
        who, asked.key, asked.fields, asked.if_absent
    ),
    Op.FIELDS_GET: lambda store, who, asked: store.maps.get(who, asked.key, asked.fields),
    Op.FIELDS_ALL: lambda store, who, asked: store.maps.all(who, asked.key),
    Op.FIELDS_DELETE: lambda store, who, asked: store.maps.delete(who, asked.key, asked.fields),
    Op.FIELDS_INCR: lambda store, who, asked: store.maps.incr(
        who, asked.key, asked.field, asked.by
    ),
    Op.FIELDS_COUNT: lambda store, who, asked: store.maps.length(who, asked.key),
    Op.LIST_PUSH: lambda store, who, asked: store.lists.push(
        who, asked.key, asked.values, asked.left
    ),
    Op.LIST_POP: lambda store, who, asked: store.lists.pop(who, asked.key, asked.count, asked.left),
    Op.LIST_RANGE: lambda store, who, asked: store.lists.range(
        who, asked.key, asked.start, asked.stop
    ),
    Op.LIST_REPLACE: lambda store, who, asked: store.lists.replace(
        who, asked.key, asked.index, asked.value
    ),
    Op.LIST_TRIM: lambda store, who, asked: store.lists.trim(
        who, asked.key, asked.start, asked.stop
    ),
    Op.LIST_REMOVE: lambda store, who, asked: store.lists.remove(
        who, asked.key, asked.value, asked.count
    ),
    Op.LIST_LENGTH: lambda store, who, asked: store.lists.length(who, asked.key),
    Op.SET_ADD: lambda store, who, asked: store.sets.add(who, asked.key, asked.members),
    Op.SET_REMOVE: lambda store, who, asked: store.sets.remove(who, asked.key, asked.members),
    Op.SET_POP: lambda store, who, asked: store.sets.pop(who, asked.key, asked.count),
    Op.SET_CONTAINS: lambda store, who, asked: store.sets.contains(who, asked.key, asked.members),
    Op.SET_MEMBERS: lambda store, who, asked: store.sets.members(who, asked.key),
    Op.SET_SIZE: lambda store, who, asked: store.sets.length(who, asked.key),
}
"""Our requests that are answered at once."""


class StoreRequests:
    """All requests of the store."""

    def __init__(self, service: StoreService) -> None:
        self._service = service
        self.answers: Mapping[int, Answer] = {
            Op.MAP_SET: self._map_set,
            Op.MAP_GET: self._map_get,
            Op.MAP_DEL: self._map_del,
        } | {op: self._answer(op, run) for op, run in _RUNS.items()}
        self.handlers: Mapping[int, Handler] = {
            op: handler_of(answer) for op, answer in self.answers.items()
        } | {Op.LEASE_TAKE: self._take_lease}

    def _map_get(self, peer: Peer, payload: memoryview) -> bytes | None:
        return self._service.get(peer, classic.decode_map_key(payload))

    def _map_set(self, peer: Peer, payload: memoryview) -> bytes:
        key, options, value = classic.decode_map_set(payload)
        if options and (ttl_ms := classic.options_ttl_ms(options)) is not None:
            self._service.set(peer, key, value, ttl_ms=ttl_ms)
        else:
            self._service.put(peer, key, value)
        return b""

    def _map_del(self, peer: Peer, payload: memoryview) -> bytes:
        self._service.delete(peer, [classic.decode_map_key(payload)])
        return b""

    def _answer(self, op: Op, run: Run) -> Answer:
        service, reply = self._service, _REPLIES.get(op)

        def answer(peer: Peer, payload: memoryview) -> bytes:
            result = run(service, peer, wire.decode_request(op, payload))
            return wire.encode_reply(result if reply is None else reply(result))

        return answer

    def _take_lease(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        asked = wire.decode_request(Op.LEASE_TAKE, payload)
        assert isinstance(asked, wire.TakeLease)

        def done(lease: LeaseAnswer | NexoError) -> None:
            if isinstance(lease, NexoError):
                peer.fail(request_id, lease)
            else:
                reply = wire.LeaseReply(lease.number, lease.retry_ms)
                peer.data(request_id, wire.encode_reply(reply))

        self._service.take_lease(
            peer,
            request_id,
            asked.key,
            asked.holder,
            asked.ttl_ms,
            asked.limit,
            asked.wait_ms,
            done,
        )
