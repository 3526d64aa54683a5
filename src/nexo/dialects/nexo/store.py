"""The store's requests: bytes to use cases and back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from msgspec.structs import asdict

from nexo.brokers.store.coordination import LeaseAnswer
from nexo.dialects.nexo.handlers import Answer, Handler, Peer, handler_of
from nexo.dialects.nexo.replies import reply_packed
from nexo.protocol import store as wire
from nexo.protocol import store_classic as classic
from nexo.protocol.messages import pack
from nexo.protocol.ops import Op
from nexo.services.connection import Done
from nexo.services.store.commands import KeyCommands
from nexo.services.store.service import StoreService

UseCase: TypeAlias = Callable[..., object]


def _use_cases(store: StoreService) -> dict[Op, UseCase]:
    """What our requests call that are answered at once, with their fields by name.

    Results of several fields are tuples, in the order of the structs that clients read.
    """
    return {
        Op.KEY_SET: store.set,
        Op.KEY_DELETE: store.delete,
        Op.KEY_EXISTS: store.exists,
        Op.KEY_MGET: store.mget,
        Op.KEY_MSET: store.mset,
        Op.KEY_SCAN: store.scan,
        Op.STORE_CLEAR: store.clear,
        Op.LEASE_RELEASE: store.release_lease,
    }


def _commands(commands: KeyCommands) -> dict[Op, UseCase]:
    """The same of requests that are commands on one key, with their fields as a dict."""
    return {
        Op.KEY_DELETE_IF: commands.delete_if,
        Op.KEY_INCR: commands.incr,
        Op.KEY_GETDEL: commands.getdel,
        Op.KEY_EXPIRE: commands.expire,
        Op.KEY_PERSIST: commands.persist,
        Op.KEY_INSPECT: commands.inspect,
        Op.LEASE_RENEW: commands.renew_lease,
        Op.RATE_BUCKET: commands.take_tokens,
        Op.RATE_WINDOW: commands.count_in_window,
        Op.FIELDS_SET: commands.map_set,
        Op.FIELDS_GET: commands.map_get,
        Op.FIELDS_ALL: commands.map_all,
        Op.FIELDS_DELETE: commands.map_delete,
        Op.FIELDS_INCR: commands.map_incr,
        Op.FIELDS_COUNT: commands.map_length,
        Op.LIST_PUSH: commands.list_push,
        Op.LIST_POP: commands.list_pop,
        Op.LIST_RANGE: commands.list_range,
        Op.LIST_REPLACE: commands.list_replace,
        Op.LIST_TRIM: commands.list_trim,
        Op.LIST_REMOVE: commands.list_remove,
        Op.LIST_LENGTH: commands.list_length,
        Op.SET_ADD: commands.set_add,
        Op.SET_REMOVE: commands.set_remove,
        Op.SET_POP: lambda who, given: commands.set_pop(who, _without_end(given)),
        Op.SET_CONTAINS: commands.set_contains,
        Op.SET_MEMBERS: commands.set_members,
        Op.SET_SIZE: commands.set_length,
    }


def _without_end(given: dict[str, Any]) -> dict[str, Any]:
    """LIST_POP and SET_POP look alike, and a set has no ends."""
    return {"key": given["key"], "count": given["count"]}


class StoreRequests:
    """All requests of the store."""

    def __init__(self, service: StoreService) -> None:
        self._service = service
        self.answers: Mapping[int, Answer] = {
            Op.MAP_SET: self._map_set,
            Op.MAP_GET: self._map_get,
            Op.MAP_DEL: self._map_del,
            **{op: self._answer(op, use_case) for op, use_case in _use_cases(service).items()},
            **{op: self._command(op, use) for op, use in _commands(service.commands).items()},
        }
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

    def _answer(self, op: Op, use_case: UseCase) -> Answer:
        def answer(peer: Peer, payload: memoryview) -> bytes:
            return pack(use_case(peer, **asdict(wire.decode_request(op, payload))))

        return answer

    def _command(self, op: Op, command: UseCase) -> Answer:
        def answer(peer: Peer, payload: memoryview) -> bytes:
            return pack(command(peer, asdict(wire.decode_request(op, payload))))

        return answer

    def _take_lease(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        asked = asdict(wire.decode_request(Op.LEASE_TAKE, payload))
        done: Done[LeaseAnswer] = reply_packed(peer, request_id)
        self._service.take_lease(peer, request_id, **asked, done=done)
