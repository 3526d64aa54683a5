"""Django's cache in the store broker.

Whole and finite numbers and text are kept as they are, so that other clients can read them;
everything else is pickled, as in Django's own backends. Keys are
``<namespace>/<Django's own key>``, so that `NexoCache.clear` leaves the rest of the store alone.
"""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

from asgiref.sync import sync_to_async
from django.core.cache.backends.base import DEFAULT_TIMEOUT, BaseCache, default_key_func
from django.utils.module_loading import import_string

from nexo.client._sync.store.store import Store
from nexo.errors import PayloadTooLarge
from nexo.integrations.django.clients import client_of
from nexo.model.store import MAX_TTL_S

_INT64 = range(-(2**63), 2**63)
_BATCH_KEYS = 1_000
_ABSENT: Any = object()


class PickleSerializer:
    """How values are kept unless ``OPTIONS["SERIALIZER"]`` says otherwise."""

    def dumps(self, value: Any) -> Any:
        if _is_plain(value):
            return value
        return pickle.dumps(value, pickle.HIGHEST_PROTOCOL)

    def loads(self, stored: Any) -> Any:
        return pickle.loads(stored) if isinstance(stored, bytes) else stored


def _is_plain(value: Any) -> bool:
    """Whether the store keeps it exactly, and can count with it if it is a number."""
    if type(value) is int:
        return value in _INT64
    if type(value) is float:
        return math.isfinite(value)
    return type(value) is str and _encodable(value)


def _encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _aside(method: str) -> Callable[..., Coroutine[Any, Any, Any]]:
    """A method on a thread of its own, so that requests do not wait for one another."""

    async def call(self: NexoCache, *args: Any, **options: Any) -> Any:
        there = sync_to_async(getattr(self, method), thread_sensitive=False)
        return await there(*args, **options)

    return call


class NexoCache(BaseCache):
    """``LOCATION`` is the server's URL; without one, ``NEXO_URL`` or a local server is used.

    ``OPTIONS``: ``NAMESPACE`` (``django-cache``), ``SERIALIZER`` (a dotted path to a class with
    ``dumps`` and ``loads``). Timeouts are exact to the millisecond.
    """

    def __init__(self, location: str, params: dict[str, Any]) -> None:
        super().__init__(params)
        options = params.get("OPTIONS", {})
        self._url = location or None
        self._namespace = options.get("NAMESPACE", "django-cache")
        serializer = options.get("SERIALIZER", PickleSerializer)
        made = import_string(serializer) if isinstance(serializer, str) else serializer
        self._serializer = made() if callable(made) else made

    @property
    def _store(self) -> Store:
        return client_of(self._url).store

    def _key(self, key: Any, version: int | None) -> str:
        return f"{self._namespace}/{self.make_and_validate_key(key, version=version)}"

    def _ttl(self, timeout: Any) -> float | None:
        """Seconds to live; None for ever; 0 or less: it is not kept at all."""
        seconds: float | None = self.default_timeout if timeout is DEFAULT_TIMEOUT else timeout
        return None if seconds is None or seconds > MAX_TTL_S else seconds

    # -- one key

    def get(self, key: Any, default: Any = None, version: int | None = None) -> Any:
        stored = self._store.get(self._key(key, version), default=_ABSENT)
        return default if stored is _ABSENT else self._serializer.loads(stored)

    def set(
        self, key: Any, value: Any, timeout: Any = DEFAULT_TIMEOUT, version: int | None = None
    ) -> None:
        name, ttl = self._key(key, version), self._ttl(timeout)
        if _is_over(ttl):
            self._store.delete(name)
        else:
            self._store.set(name, self._serializer.dumps(value), ttl=ttl)

    def add(
        self, key: Any, value: Any, timeout: Any = DEFAULT_TIMEOUT, version: int | None = None
    ) -> bool:
        name, ttl = self._key(key, version), self._ttl(timeout)
        if _is_over(ttl):
            return not self._store.exists(name)
        return self._store.set(name, self._serializer.dumps(value), ttl=ttl, if_absent=True)

    def touch(self, key: Any, timeout: Any = DEFAULT_TIMEOUT, version: int | None = None) -> bool:
        name, ttl = self._key(key, version), self._ttl(timeout)
        if ttl is None:
            return self._store.persist(name) or self._store.exists(name)
        return self._store.delete(name) if ttl <= 0 else self._store.expire(name, ttl)

    def delete(self, key: Any, version: int | None = None) -> bool:
        return self._store.delete(self._key(key, version))

    def has_key(self, key: Any, version: int | None = None) -> bool:
        return self._store.exists(self._key(key, version))

    def incr(self, key: Any, delta: Any = 1, version: int | None = None) -> Any:
        """No increment is lost, and the key keeps its life time."""
        name = self._key(key, version)
        while True:
            stored = self._store.get(name, default=_ABSENT)
            if stored is _ABSENT:
                raise ValueError(f"Key '{key}' not found")
            total = self._serializer.loads(stored) + delta
            if self._store.cas(name, stored, self._serializer.dumps(total), keep_ttl=True):
                return total

    def incr_version(self, key: Any, delta: int = 1, version: int | None = None) -> int:
        """The key keeps its life time."""
        old = self.version if version is None else version
        name = self._key(key, old)
        stored, ttl = self._store.get(name, default=_ABSENT), self._store.ttl(name)
        if stored is _ABSENT or ttl is None:
            raise ValueError(f"Key '{key}' not found")
        lasting = None if math.isinf(ttl) else max(ttl, 0.001)
        self._store.set(self._key(key, old + delta), stored, ttl=lasting)
        self._store.delete(name)
        return int(old + delta)

    # -- many keys

    def get_many(self, keys: Iterable[Any], version: int | None = None) -> dict[Any, Any]:
        """One request."""
        names = {self._key(key, version): key for key in keys}
        stored = self._store.mget([*names]) if names else []
        return {
            key: self._serializer.loads(value)
            for key, value in zip(names.values(), stored, strict=True)
            if value is not None  # None itself is kept pickled
        }

    def set_many(
        self,
        data: Mapping[Any, Any],
        timeout: Any = DEFAULT_TIMEOUT,
        version: int | None = None,
    ) -> list[Any]:
        """One request for each thousand keys."""
        ttl = self._ttl(timeout)
        if _is_over(ttl):
            self.delete_many(data, version=version)
            return []
        named = {
            self._key(key, version): self._serializer.dumps(value) for key, value in data.items()
        }
        for batch in _batches(named):
            self._set_batch({name: named[name] for name in batch}, ttl)
        return []

    def _set_batch(self, named: dict[str, Any], ttl: float | None) -> None:
        try:
            self._store.mset(named, ttl=ttl)
        except PayloadTooLarge:  # together; if one alone is, that is raised
            for name, value in named.items():
                self._store.set(name, value, ttl=ttl)

    def delete_many(self, keys: Iterable[Any], version: int | None = None) -> None:
        """One request for each thousand keys."""
        for batch in _batches(self._key(key, version) for key in keys):
            self._store.delete_many(*batch)

    def clear(self, version: int | None = None) -> bool:
        """Delete this cache's keys: those of its ``KEY_PREFIX``, of one ``version`` or all.

        With a ``KEY_FUNCTION`` of your own, all of its ``NAMESPACE``, whatever the version.
        """
        for batch in _batches(self._store.keys(self._namespace + "/" + self._own(version))):
            self._store.delete_many(*batch)
        return True

    def _own(self, version: int | None) -> str:
        """How the keys of this cache begin."""
        if self.key_func is not default_key_func:
            return ""
        return f"{self.key_prefix}:" + ("" if version is None else f"{version}:")

    # -- async: the same in a thread, as a client is not bound to the loop of one request

    aget = _aside("get")
    aset = _aside("set")
    aadd = _aside("add")
    atouch = _aside("touch")
    adelete = _aside("delete")
    ahas_key = _aside("has_key")
    aincr = _aside("incr")
    aincr_version = _aside("incr_version")
    aget_many = _aside("get_many")
    aset_many = _aside("set_many")
    adelete_many = _aside("delete_many")
    aclear = _aside("clear")


def _is_over(ttl: float | None) -> bool:
    return ttl is not None and ttl <= 0


def _batches(names: Iterable[str]) -> Iterator[list[str]]:
    left = iter(names)
    while batch := list(islice(left, _BATCH_KEYS)):
        yield batch
