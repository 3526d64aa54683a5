"""Our store requests: which engine command each one runs, and what it answers.

The table `COMMANDS` is all the service needs; nothing here knows of peers or replies.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar

from nexo.brokers.store.engine import Store
from nexo.protocol import store as wire
from nexo.protocol.ops import Op

C = TypeVar("C", bound=wire.Command)
Run: TypeAlias = Callable[[Store, C, int], object]

COMMANDS: dict[Op, Callable[[Store, Any, int], object]] = {}
"""By opcode: runs a request on the store at a time, and returns the reply to encode."""


def _runs(op: Op) -> Callable[[Run[C]], Run[C]]:
    def register(run: Run[C]) -> Run[C]:
        COMMANDS[op] = run
        return run

    return register


@_runs(Op.KEY_SET)
def _set(store: Store, asked: wire.SetKey, now_ms: int) -> wire.SetReply:
    result = store.set(
        asked.key,
        asked.value,
        now_ms,
        ttl_ms=asked.ttl_ms,
        keep_ttl=asked.keep_ttl,
        if_absent=asked.if_absent,
        if_equal=asked.if_equal,
        get_previous=asked.get_previous,
    )
    return wire.SetReply(result.done, result.previous)


@_runs(Op.KEY_DELETE)
def _delete(store: Store, asked: wire.Keys, now_ms: int) -> int:
    return store.delete(asked.keys, now_ms)


@_runs(Op.KEY_EXISTS)
def _exists(store: Store, asked: wire.Keys, now_ms: int) -> int:
    return store.exists(asked.keys, now_ms)


@_runs(Op.KEY_MGET)
def _mget(store: Store, asked: wire.Keys, now_ms: int) -> list[bytes | None]:
    return store.mget(asked.keys, now_ms)


@_runs(Op.KEY_MSET)
def _mset(store: Store, asked: wire.SetMany, now_ms: int) -> None:
    store.mset(asked.values, now_ms, asked.ttl_ms)


@_runs(Op.KEY_INCR)
def _incr(store: Store, asked: wire.Increment, now_ms: int) -> float:
    return store.incr(asked.key, asked.by, now_ms, asked.ttl_ms)


@_runs(Op.KEY_GETDEL)
def _getdel(store: Store, asked: wire.OneKey, now_ms: int) -> bytes | None:
    return store.getdel(asked.key, now_ms)


@_runs(Op.KEY_EXPIRE)
def _expire(store: Store, asked: wire.Expire, now_ms: int) -> bool:
    return store.expire(asked.key, asked.ttl_ms, now_ms)


@_runs(Op.KEY_PERSIST)
def _persist(store: Store, asked: wire.OneKey, now_ms: int) -> bool:
    return store.persist(asked.key, now_ms)


@_runs(Op.KEY_INSPECT)
def _inspect(store: Store, asked: wire.OneKey, now_ms: int) -> wire.Info | None:
    if (info := store.inspect(asked.key, now_ms)) is None:
        return None
    return wire.Info(info.kind, info.items, info.size_bytes, info.ttl_ms)


@_runs(Op.KEY_SCAN)
def _scan(store: Store, asked: wire.Scan, now_ms: int) -> wire.Page:
    page = store.scan(
        now_ms, prefix=asked.prefix, glob=asked.glob, cursor=asked.cursor, limit=asked.limit
    )
    return wire.Page(page.keys, page.cursor)


@_runs(Op.STORE_CLEAR)
def _clear(store: Store, _: wire.Clear, now_ms: int) -> int:
    return store.clear()


@_runs(Op.FIELDS_SET)
def _fields_set(store: Store, asked: wire.SetFields, now_ms: int) -> int:
    return store.maps.set(asked.key, asked.fields, now_ms, if_absent=asked.if_absent)


@_runs(Op.FIELDS_GET)
def _fields_get(store: Store, asked: wire.Fields, now_ms: int) -> list[bytes | None]:
    return store.maps.get(asked.key, asked.fields, now_ms)


@_runs(Op.FIELDS_ALL)
def _fields_all(store: Store, asked: wire.OneKey, now_ms: int) -> object:
    return store.maps.all(asked.key, now_ms)


@_runs(Op.FIELDS_DELETE)
def _fields_delete(store: Store, asked: wire.Fields, now_ms: int) -> int:
    return store.maps.delete(asked.key, asked.fields, now_ms)


@_runs(Op.FIELDS_INCR)
def _fields_incr(store: Store, asked: wire.IncrementField, now_ms: int) -> float:
    return store.maps.incr(asked.key, asked.field, asked.by, now_ms)


@_runs(Op.FIELDS_COUNT)
def _fields_count(store: Store, asked: wire.OneKey, now_ms: int) -> int:
    return store.maps.length(asked.key, now_ms)


@_runs(Op.LIST_PUSH)
def _list_push(store: Store, asked: wire.Push, now_ms: int) -> int:
    return store.lists.push(asked.key, asked.values, now_ms, left=asked.left)


@_runs(Op.LIST_POP)
def _list_pop(store: Store, asked: wire.Pop, now_ms: int) -> list[bytes]:
    return store.lists.pop(asked.key, asked.count, now_ms, left=asked.left)


@_runs(Op.LIST_RANGE)
def _list_range(store: Store, asked: wire.Range, now_ms: int) -> list[bytes]:
    return store.lists.range(asked.key, asked.start, asked.stop, now_ms)


@_runs(Op.LIST_REPLACE)
def _list_replace(store: Store, asked: wire.Replace, now_ms: int) -> None:
    store.lists.replace(asked.key, asked.index, asked.value, now_ms)


@_runs(Op.LIST_TRIM)
def _list_trim(store: Store, asked: wire.Range, now_ms: int) -> int:
    return store.lists.trim(asked.key, asked.start, asked.stop, now_ms)


@_runs(Op.LIST_REMOVE)
def _list_remove(store: Store, asked: wire.RemoveValue, now_ms: int) -> int:
    return store.lists.remove(asked.key, asked.value, asked.count, now_ms)


@_runs(Op.LIST_LENGTH)
def _list_length(store: Store, asked: wire.OneKey, now_ms: int) -> int:
    return store.lists.length(asked.key, now_ms)


@_runs(Op.SET_ADD)
def _set_add(store: Store, asked: wire.Members, now_ms: int) -> int:
    return store.sets.add(asked.key, asked.members, now_ms)


@_runs(Op.SET_REMOVE)
def _set_remove(store: Store, asked: wire.Members, now_ms: int) -> int:
    return store.sets.remove(asked.key, asked.members, now_ms)


@_runs(Op.SET_POP)
def _set_pop(store: Store, asked: wire.Pop, now_ms: int) -> list[bytes]:
    return store.sets.pop(asked.key, asked.count, now_ms)


@_runs(Op.SET_CONTAINS)
def _set_contains(store: Store, asked: wire.Members, now_ms: int) -> list[bool]:
    return store.sets.contains(asked.key, asked.members, now_ms)


@_runs(Op.SET_MEMBERS)
def _set_members(store: Store, asked: wire.OneKey, now_ms: int) -> list[bytes]:
    return store.sets.members(asked.key, now_ms)


@_runs(Op.SET_SIZE)
def _set_size(store: Store, asked: wire.OneKey, now_ms: int) -> int:
    return store.sets.length(asked.key, now_ms)
