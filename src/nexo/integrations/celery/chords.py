"""Chords that survive a crash of the server (SPEC M1).

The store lives in memory, so what a chord needs is kept twice: there, where it is quick to read,
and as retained messages, which are on disk.

    celery/chord/<group>/size             how many parts the header has, once all are sent
    celery/chord/<group>/shape            the header's results as Celery writes them, if nested
    celery/chord/<group>/part/<task>      the result of a part
    celery/chord/<group>/added/<task>     a part that another part added

Parts are counted by their task, so that one that runs twice counts once. The store's counter says
when it is worth looking.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar
from urllib.parse import quote, unquote

from nexo.client._sync.client import Client
from nexo.client._sync.link import repeating
from nexo.client._sync.store.collections import StoreMap
from nexo.errors import ConnectionLost, RequestTimeout, Unavailable

T = TypeVar("T")

_READ_S = 10.0
_INSIST_S = 60.0
MAX_PARTS = 5_000
"""A chord with more parts is kept by the store alone, and lost with it."""
_READ_AT_ONCE = 100
_START = 1_000_000
"""Where counters start: one that is below was lost with the store, and says nothing."""
CALLED = "called"
"""The value of the lock of a chord whose body has been called."""


def insist(call: Callable[..., T], *args: Any, **options: Any) -> T:
    """Repeat an idempotent call while the connection is lost: no result may be lost with it."""
    ask = partial(call, *args, **options)
    return repeating.insist(ask, (ConnectionLost, Unavailable), _INSIST_S)


class Chord:
    """The state of one chord, kept for ``expires_s``."""

    def __init__(
        self, client: Client, prefix: str, key: str, group: str, expires_s: int | None
    ) -> None:
        self.group = group
        self._client = client
        self._store = client.store
        self._root = f"{quote(prefix, safe='')}celery/chord/{quote(group, safe='')}"
        self._expires_s = expires_s or None
        self._counter, self._lock, self._size = key, f"{key}-call", f"{key}-size"
        self._parts: StoreMap[Any] = client.store.map(f"{key}-parts")

    # -- what is kept

    def begin(self) -> None:
        self._set(self._counter, _START)

    def set_size(self, size: int) -> None:
        """The header has so many parts; what is said first holds.

        Celery says it again for a group at the end of a chain, which has the chord's id.
        """
        if self._read("size") is None:
            self._set(self._size, size)
            self._keep("size", size)

    def add_part(self, task: str) -> None:
        """Wait for one more part than the header has."""
        self._keep(f"added/{quote(task, safe='')}", task)

    def keep_shape(self, shape: Any) -> None:
        self._keep("shape", shape)

    def keep_part(self, task: str, value: Any) -> None:
        """Keep the result of a part; once it is kept, the part counts."""
        self._keep(f"part/{quote(task, safe='')}", value)
        insist(self._parts.set, task, value)
        if self._expires_s:
            insist(self._parts.expire, self._expires_s)

    def shape(self) -> Any:
        """The header's results as they were kept, or None."""
        return self._read("shape")

    def added(self) -> set[str]:
        return self._tasks("added", MAX_PARTS)

    def parts(self) -> dict[str, Any]:
        """The state of each part, by its task."""
        tasks = sorted(self._tasks("part", MAX_PARTS))
        if len(tasks) >= MAX_PARTS:
            return insist(self._parts.all)
        found: dict[str, Any] = {}
        for start in range(0, len(tasks), _READ_AT_ONCE):
            some = tasks[start : start + _READ_AT_ONCE]
            found |= zip(some, insist(self._parts.get_many, *some), strict=True)
        lost = [task for task, value in found.items() if value is None]
        return found | {task: self._read(f"part/{quote(task, safe='')}") for task in lost}

    def _forget(self) -> None:
        insist(self._store.delete_many, self._counter, self._size, self._parts.name)
        while rows := insist(self._client.pubsub.retained, f"{self._root}/#", limit=1_000):
            for row in rows:
                insist(self._client.pubsub.publish, row.topic, b"", retain=True)

    def _set(self, key: str, value: Any) -> None:
        insist(self._store.set, key, value, ttl=self._expires_s)

    def _keep(self, name: str, value: Any) -> None:
        topic = f"{self._root}/{name}"
        insist(self._client.pubsub.publish, topic, value, retain=True, ttl=self._expires_s)

    def _read(self, name: str) -> Any:
        topic = f"{self._root}/{name}"
        if not insist(self._client.pubsub.retained, topic, limit=1):
            return None
        with insist(self._client.pubsub.subscribe, topic) as found:
            try:
                return found.get(_READ_S).value
            except RequestTimeout:  # it has expired meanwhile
                return None

    def _tasks(self, kind: str, limit: int) -> set[str]:
        rows = insist(self._client.pubsub.retained, f"{self._root}/{kind}/+", limit=limit)
        return {unquote(row.topic.rpartition("/")[2]) for row in rows}

    # -- who calls the body

    def is_called(self) -> bool:
        return bool(insist(self._store.get, self._lock) == CALLED)

    def may_call(self, task: str) -> bool:
        """Whether all parts are done and this task is to call the body.

        If its worker dies first, the task may call it when it runs again.
        """
        if not self._is_complete():
            return False
        if insist(self._store.set, self._lock, task, if_absent=True, ttl=self._expires_s):
            return True
        return bool(insist(self._store.get, self._lock) == task)

    def called(self) -> None:
        """Forget the chord, but for the fact that its body was called: a part may run again."""
        self._set(self._lock, CALLED)
        self._forget()

    def _is_complete(self) -> bool:
        count = insist(self._store.incr, self._counter) - _START
        size = insist(self._store.get, self._size) or self._read("size")
        if size is None or 0 <= count < size:
            return False
        wanted = int(size) + len(self.added())
        if wanted > MAX_PARTS:
            return insist(self._parts.length) >= wanted
        return len(self._tasks("part", wanted)) >= wanted
