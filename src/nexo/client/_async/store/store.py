"""The store's client: keys with values, counters, and handles for collections."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from functools import wraps
from typing import Any, Never, ParamSpec, TypeAlias, TypeVar, cast, overload

from msgspec import convert

from nexo.client._async.link.link import Link
from nexo.client._async.requests import status
from nexo.client._async.store.collections import StoreList, StoreMap, StoreSet
from nexo.client._async.store.coordination import Lock, RateKind, RateLimiter
from nexo.client._async.store.requests import StoreKeys, ask, ask_count, ttl_ms
from nexo.client.checks import each, not_keywords, pairs, positive_millis
from nexo.client.views import call_key, taken
from nexo.errors import ConnectionLost, InvalidInput
from nexo.model import Broker
from nexo.model.server import StoreInfo
from nexo.model.store import KeysPage, SetResult
from nexo.options.units import Duration
from nexo.protocol import store as wire
from nexo.protocol.ops import Op
from nexo.protocol.store_classic import encode_map_key, encode_map_set
from nexo.protocol.values import decode_value, encode_value

T = TypeVar("T")
D = TypeVar("D")
P = ParamSpec("P")
R = TypeVar("R")

_ANYTHING: Any = object()

# The class below has a method ``list``, so its annotations cannot use it.
_List: TypeAlias = list
_Values: TypeAlias = list[Any]
_GET, _SET = int(Op.MAP_GET), int(Op.MAP_SET)
_PAGE_KEYS = 1_000


class Store(StoreKeys):
    """Shared state of all clients: keys of 1 byte to 64 KiB, values of any type.

    TTLs are seconds, a text like ``"5m"`` or a ``timedelta``, exact to the millisecond;
    without one a key stays.
    Where a ``type_`` is taken, a dataclass, msgspec struct, pydantic model or annotation
    makes the value come back as that type; a value that does not fit raises `InvalidInput`.
    """

    def __init__(self, link: Link) -> None:
        super().__init__(link)
        self.map = Maps(self)
        """``store.map(name)`` is a map; ``store.map.get(key)`` and so on are plain keys."""

    def __repr__(self) -> str:
        return f"<Store of {self._link.address}>"

    # -- one key --------------------------------------------------------------

    @overload
    async def get(self, key: str, *, default: Any = None) -> Any: ...
    @overload
    async def get(self, key: str, type_: type[T]) -> T | None: ...
    @overload
    async def get(self, key: str, type_: type[T], *, default: D) -> T | D: ...
    async def get(self, key: str, type_: type[Any] | None = None, *, default: Any = None) -> Any:
        """The value of ``key``, or ``default`` if there is none."""
        try:
            value = await self._link.call(_GET, encode_map_key(key))
        except ConnectionLost:  # reading twice is harmless
            value = await self._link.repeat(_GET, encode_map_key(key))
        return default if value is None else decode_value(value, type_)

    async def set(
        self,
        key: str,
        value: object,
        *misplaced: Never,
        ttl: Duration | None = None,
        keep_ttl: bool = False,
        if_absent: bool = False,
    ) -> bool:
        """Set ``key``; False only if ``if_absent`` and the key exists.

        Clears any TTL the key had, unless ``keep_ttl``.
        """
        if misplaced:
            raise not_keywords(misplaced, "set(key, value, ttl='1h')")
        raw = encode_value(value)
        if ttl is None and not keep_ttl and not if_absent:
            request = encode_map_set(key, raw)
            await self._link.call(_SET, request)
            return True
        reply = await self._set(wire.SetKey(key, raw, ttl_ms(ttl), keep_ttl, if_absent))
        return reply.done

    async def cas(
        self,
        key: str,
        expected: object,
        value: object,
        *,
        ttl: Duration | None = None,
        keep_ttl: bool = False,
    ) -> bool:
        """Compare and set: set ``key`` only if it holds ``expected``; False if it does not."""
        command = wire.SetKey(
            key, encode_value(value), ttl_ms(ttl), keep_ttl, if_equal=encode_value(expected)
        )
        return (await self._set(command)).done

    async def getset(
        self,
        key: str,
        value: object,
        type_: type[T] | None = None,
        *,
        ttl: Duration | None = None,
        keep_ttl: bool = False,
        default: Any = None,
    ) -> Any:
        """Set ``key``; returns its previous value, or ``default``.

        If that does not fit ``type_``, `DoesNotFit` carries it as its ``value``.
        """
        command = wire.SetKey(key, encode_value(value), ttl_ms(ttl), keep_ttl, get_previous=True)
        previous = (await self._set(command)).previous
        return default if previous is None else taken(previous, type_, "the key was set")

    async def _set(self, command: wire.SetKey) -> SetResult:
        reply: SetResult = await ask(self._link, Op.KEY_SET, command)
        return reply

    async def getdel(self, key: str, type_: type[T] | None = None, *, default: Any = None) -> Any:
        """Delete the key and return its value, in one step.

        If that does not fit ``type_``, `DoesNotFit` carries it as its ``value``.
        """
        value = await ask(self._link, Op.KEY_GETDEL, wire.OneKey(key))
        return default if value is None else taken(value, type_, "the key was deleted")

    async def delete(self, key: str, *, if_equal: object = _ANYTHING) -> bool:
        """Delete a key of any kind; False if there was none.

        With ``if_equal`` (compare and delete) only if it holds that value.
        """
        if if_equal is _ANYTHING:
            return await self.delete_many(key) == 1
        command = wire.DeleteIf(key, encode_value(if_equal))
        deleted: bool = await ask(self._link, Op.KEY_DELETE_IF, command)
        return deleted

    # -- numbers --------------------------------------------------------------

    async def incr(self, key: str, by: float = 1, *, ttl: Duration | None = None) -> float:
        """Add to a number, which starts at 0; returns the sum, an integer if both are.

        The TTL applies only to a new key, so that a counter per time window is one call.
        """
        command = wire.Increment(key, by, ttl_ms(ttl))
        total: float = await ask(self._link, Op.KEY_INCR, command)
        return total

    async def decr(self, key: str, by: float = 1, *, ttl: Duration | None = None) -> float:
        """Subtract from a number; see `incr`."""
        return await self.incr(key, -by, ttl=ttl)

    # -- several keys ---------------------------------------------------------

    @overload
    async def mget(self, keys: Sequence[str]) -> _Values: ...
    @overload
    async def mget(self, keys: Sequence[str], type_: type[T]) -> _List[T | None]: ...
    async def mget(self, keys: Sequence[str], type_: type[Any] | None = None) -> _Values:
        """The values of ``keys`` in order; None where there is none."""
        if isinstance(keys, str):
            raise InvalidInput("keys are a list of keys, not one key")
        values = await ask(self._link, Op.KEY_MGET, wire.Keys([*each(keys, "keys")]))
        return [None if value is None else decode_value(value, type_) for value in values]

    async def mset(self, values: Mapping[str, object], *, ttl: Duration | None = None) -> None:
        """Set several keys at once, with one TTL or none."""
        encoded = {key: encode_value(value) for key, value in pairs(values).items()}
        await ask(self._link, Op.KEY_MSET, wire.SetMany(encoded, ttl_ms(ttl)))

    async def keys(self, prefix: str = "", *, glob: str = "") -> AsyncIterator[str]:
        """Every key that begins with ``prefix`` and matches ``glob`` (``*``, ``?``, ``[a-z]``).

        In code point order. A key that exists throughout the iteration is returned exactly once,
        whatever else changes; others at most once.
        """
        cursor: str | None = ""
        while cursor is not None:
            page = await self.scan(cursor, prefix=prefix, glob=glob, limit=_PAGE_KEYS)
            for key in page.keys:
                yield key
            cursor = page.cursor

    async def scan(
        self, cursor: str = "", *, prefix: str = "", glob: str = "", limit: int = 100
    ) -> KeysPage:
        """One page of `keys`; continue with its ``cursor`` until that is None.

        A page may be short, even empty, and still have a cursor.
        """
        page: KeysPage = await ask(self._link, Op.KEY_SCAN, wire.Scan(prefix, glob, cursor, limit))
        return page

    async def clear(self) -> int:
        """Delete everything in the store; returns how many keys there were."""
        return await ask_count(self._link, Op.STORE_CLEAR, wire.Clear())

    async def info(self) -> StoreInfo:
        """Keys, memory, hits, evictions and saves, as the server counts them."""
        return convert(await status(self._link.repeat, Broker.STORE), StoreInfo)

    # -- coordination ---------------------------------------------------------

    def lock(self, name: str, *, ttl: Duration = 30, timeout: Duration | None = None) -> Lock:
        """A lock that one client at a time holds: ``async with store.lock("report") as lock``.

        Its lease of ``ttl`` is renewed while it is held. ``timeout`` is how long to wait for it.
        """
        return Lock(self._link, name, 1, ttl, timeout)

    def semaphore(
        self, name: str, limit: int, *, ttl: Duration = 30, timeout: Duration | None = None
    ) -> Lock:
        """A lock that up to ``limit`` holders share; see `lock`."""
        return Lock(self._link, name, limit, ttl, timeout)

    def rate_limiter(
        self,
        name: str,
        limit: int,
        per: Duration,
        *,
        burst: int | None = None,
        kind: RateKind = "bucket",
    ) -> RateLimiter:
        """At most ``limit`` per time, over all clients; see `RateLimiter`."""
        return RateLimiter(self._link, name, limit, per, burst, kind)

    def cached(
        self,
        ttl: Duration,
        *,
        key: Callable[..., str] | None = None,
        type_: type[Any] | None = None,
    ) -> Callable[[Callable[P, Awaitable[R]]], Callable[P, Awaitable[R]]]:
        """Decorator: cache a function's results for ``ttl``, for all clients.

        ``key(*args, **kwargs)`` names the result; by default the function and its arguments do,
        which must then be encodable as JSON. Results are returned as ``type_``. If several callers
        find nothing, one runs the function and the others wait for its result.
        """
        lease = positive_millis(ttl, "ttl") / 1_000

        def decorate(function: Callable[P, Awaitable[R]]) -> Callable[P, Awaitable[R]]:
            @wraps(function)
            async def call(*args: P.args, **kwargs: P.kwargs) -> R:
                name = key(*args, **kwargs) if key else call_key(function, args, kwargs)
                found: Any = await self.get(name, type_ or Any, default=_ANYTHING)
                if found is not _ANYTHING:
                    return cast("R", found)
                async with self.lock(f"{name}:lock", ttl=min(30.0, lease)):
                    found = await self.get(name, type_ or Any, default=_ANYTHING)
                    if found is _ANYTHING:
                        found = await function(*args, **kwargs)
                        await self.set(name, found, ttl=ttl)
                return cast("R", found)

            return call

        return decorate

    # -- collections ----------------------------------------------------------

    @overload
    def list(self, name: str) -> StoreList[Any]: ...
    @overload
    def list(self, name: str, type_: type[T]) -> StoreList[T]: ...
    def list(self, name: str, type_: type[Any] | None = None) -> StoreList[Any]:
        """The list of that name, whose values are of ``type_``; nothing is sent yet."""
        return StoreList(self._link, name, type_)

    @overload
    def set_(self, name: str) -> StoreSet[Any]: ...
    @overload
    def set_(self, name: str, type_: type[T]) -> StoreSet[T]: ...
    def set_(self, name: str, type_: type[Any] | None = None) -> StoreSet[Any]:
        """The set of that name, whose members are of ``type_``; nothing is sent yet."""
        return StoreSet(self._link, name, type_)


class Maps:
    """``store.map``: call it with a name for that map; its methods work on plain keys.

    The methods follow other Nexo clients: the store is one large map.
    """

    def __init__(self, store: Store) -> None:
        self._link = store._link
        self.get = store.get
        self.set = store.set
        self.delete = self.del_ = store.delete

    @overload
    def __call__(self, name: str) -> StoreMap[Any]: ...
    @overload
    def __call__(self, name: str, type_: type[T]) -> StoreMap[T]: ...
    def __call__(self, name: str, type_: type[Any] | None = None) -> StoreMap[Any]:
        """The map of that name, whose values are of ``type_``; nothing is sent yet."""
        return StoreMap(self._link, name, type_)
