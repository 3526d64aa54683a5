"""Keys: look at them, set, delete, expire."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import msgspec

from nexo.admin.context import ApiContext
from nexo.admin.http.routes import ApiRoutes, ChangeCount, Limit, Nothing, Search, Seconds, Skip
from nexo.admin.values import WHOLE_BYTES, NewValue, Value, python_value, shown
from nexo.client._async.store.requests import ask as call
from nexo.errors import NotFound
from nexo.model import Broker
from nexo.protocol import store as wire
from nexo.protocol.ops import Op
from nexo.protocol.store_classic import encode_map_key

routes = ApiRoutes("Store", "/store")

_SEARCH_S = 0.15
"""How long one page is searched for when few keys match; then it is short, with a cursor."""
_MOST_ITEMS = 10_000
"""Maps and sets larger than this are not read as a whole, which is all the store offers."""


class KeyName(msgspec.Struct, forbid_unknown_fields=True):
    """A key."""

    key: wire.StoreKey


class KeysAsk(msgspec.Struct, forbid_unknown_fields=True):
    """Which keys; ``cursor`` is where the last page ended."""

    prefix: Search = ""
    glob: Search = ""
    """``*``, ``?`` and ``[a-z]``."""
    cursor: str = ""
    limit: Limit = 50


class KeyRow(msgspec.Struct):
    """One key without its value."""

    key: str
    kind: str
    """``value``, ``map``, ``list`` or ``set``."""
    items: int
    size_bytes: int
    ttl_ms: int | None


class KeyPage(msgspec.Struct):
    """Keys in order."""

    keys: list[KeyRow]
    cursor: str | None
    """The start of the next page; null at the end. A search may need several pages to find
    anything: a page may be empty and have one."""
    total: int | None
    """Keys in the whole store."""


class KeyAsk(KeyName):
    """A key; of collections, some items."""

    offset: Skip = 0
    limit: Limit = 100


class Item(msgspec.Struct):
    """An item of a collection."""

    name: str | None
    """A map's field."""
    value: Value


class KeyView(KeyRow):
    """A key and what it holds."""

    value: Value | None
    content: list[Item]
    """Of collections: the items asked for."""


class SetAsk(KeyName):
    """A plain value to set."""

    value: NewValue
    ttl_s: Seconds | None = None
    """Left out: the key never expires, even if it had a TTL."""
    if_absent: bool = False


class ExpireAsk(KeyName):
    """A new life time; null removes it."""

    ttl_s: Seconds | None


@routes.get("/keys")
async def keys(context: ApiContext, ask: KeysAsk) -> KeyPage:
    """A page of keys, in order."""
    found: list[str] = []
    cursor: str | None = ask.cursor
    end_s = time.monotonic() + _SEARCH_S
    while True:
        wanted = ask.limit - len(found)
        page = await context.client.store.scan(
            cursor or "", prefix=ask.prefix, glob=ask.glob, limit=wanted
        )
        found += page.keys
        cursor = page.cursor
        if cursor is None or len(found) >= ask.limit or time.monotonic() > end_s:
            break
    rows = await asyncio.gather(*(_row(context, key) for key in found))
    whole = Broker.STORE in await context.watchable()
    total = context.sampler.brokers[Broker.STORE].status.get("keys") if whole else None
    return KeyPage([row for row in rows if row is not None], cursor, total)


async def _row(context: ApiContext, key: str) -> KeyRow | None:
    info = await context.client.store.inspect(key)
    if info is None:
        return None
    return KeyRow(key, info.kind, info.items, info.size_bytes, info.ttl_ms)


@routes.get("/key")
async def key(context: ApiContext, ask: KeyAsk) -> KeyView:
    """A key with its value, or some items of its collection."""
    row = await _row(context, ask.key)
    if row is None:
        raise NotFound(f"key {ask.key[:64]!r} not found")
    value, content = None, []
    if row.kind == "value":
        reply = await context.client.link(Broker.STORE).call(Op.MAP_GET, encode_map_key(ask.key))
        value = None if reply is None else shown(reply, WHOLE_BYTES)
    else:
        content = await _items(context, ask, row)
    return KeyView(row.key, row.kind, row.items, row.size_bytes, row.ttl_ms, value, content)


async def _items(context: ApiContext, ask: KeyAsk, row: KeyRow) -> list[Item]:
    link, end = context.client.link(Broker.STORE), ask.offset + ask.limit
    if row.kind == "list":
        values = await call(link, Op.LIST_RANGE, wire.ListRange(ask.key, ask.offset, end))
        return [Item(None, shown(value)) for value in values]
    if row.items > _MOST_ITEMS:
        return []
    if row.kind == "set":
        members = await call(link, Op.SET_MEMBERS, wire.OneKey(ask.key))
        return [Item(None, shown(value)) for value in members[ask.offset : end]]
    fields: dict[str, Any] = await call(link, Op.FIELDS_ALL, wire.OneKey(ask.key))
    chosen = list(fields.items())[ask.offset : end]
    return [Item(name, shown(value)) for name, value in chosen]


@routes.post("/set")
async def set_value(context: ApiContext, ask: SetAsk) -> ChangeCount:
    """Set a key to a plain value."""
    ttl = None if ask.ttl_s is None else max(ask.ttl_s, 0.001)
    value = python_value(ask.value)
    done = await context.client.store.set(ask.key, value, ttl=ttl, if_absent=ask.if_absent)
    return ChangeCount(int(done))


@routes.post("/delete")
async def delete(context: ApiContext, ask: KeyName) -> ChangeCount:
    """Delete a key of any kind."""
    return ChangeCount(int(await context.client.store.delete(ask.key)))


@routes.post("/expire")
async def expire(context: ApiContext, ask: ExpireAsk) -> ChangeCount:
    """Change or remove a key's life time."""
    store = context.client.store
    if not await store.exists(ask.key):
        raise NotFound(f"key {ask.key[:64]!r} not found")
    if ask.ttl_s is None:
        return ChangeCount(int(await store.persist(ask.key)))
    return ChangeCount(int(await store.expire(ask.key, max(ask.ttl_s, 0.001))))


@routes.post("/clear")
async def clear(context: ApiContext, ask: Nothing) -> ChangeCount:
    """Delete every key."""
    return ChangeCount(await context.client.store.clear())
