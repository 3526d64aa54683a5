"""Chords that survive a crash of the server (SPEC M1).

Results are kept in the store, which lives in memory. What a chord needs is kept as retained
messages too, which are on disk: its group, and the result of each part.

    celery/chord/<group>/group            the group, as Celery saves it
    celery/chord/<group>/part/<task>      the result of a part

Parts are counted by their task, so that one that runs twice counts once. The store's counter says
when it is worth looking.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar
from urllib.parse import quote

from nexo.client._sync.client import Client
from nexo.client._sync.link import repeating
from nexo.errors import ConnectionLost, RequestTimeout, Unavailable

T = TypeVar("T")

_READ_S = 10.0
_INSIST_S = 60.0
MAX_PARTS = 5_000
"""A chord with more parts is counted by the store alone, and lost with it."""
_START = 1_000_000
"""Where counters start: one that is below was lost with the store, and says nothing."""
CALLED = "called"
"""What the lock of a chord holds whose body has been called."""


def insist(call: Callable[..., T], *args: Any, **options: Any) -> T:
    """Repeat an idempotent call while the connection is lost: no result may be lost with it."""
    ask = partial(call, *args, **options)
    return repeating.insist(ask, (ConnectionLost, Unavailable), _INSIST_S)


class Chords:
    """What is kept of chords on one server, for ``expires_s``."""

    def __init__(self, client: Client, prefix: str, expires_s: int | None) -> None:
        self._client = client
        self._root = f"{quote(prefix, safe='')}celery/chord"
        self._expires_s = expires_s or None

    # -- what is kept

    def keep_group(self, group: str, value: Any) -> None:
        self._keep(f"{self._root}/{quote(group, safe='')}/group", value)

    def keep_part(self, group: str, task: str, value: Any) -> None:
        """Keep the result of a part; once it is kept, the part counts."""
        self._keep(f"{self._root}/{quote(group, safe='')}/part/{quote(task, safe='')}", value)

    def group(self, group: str) -> Any:
        """A group that the store has lost, or None."""
        return self._read(f"{self._root}/{quote(group, safe='')}/group")

    def part(self, task: str) -> Any:
        """The result of a part that the store has lost, or None."""
        return self._read(f"{self._root}/+/part/{quote(task, safe='')}")

    def forget(self, group: str) -> None:
        """Delete all that is kept of a chord."""
        pattern = f"{self._root}/{quote(group, safe='')}/#"
        while rows := insist(self._client.pubsub.retained, pattern, limit=1_000):
            for row in rows:
                insist(self._client.pubsub.publish, row.topic, b"", retain=True)

    def _keep(self, topic: str, value: Any) -> None:
        insist(self._client.pubsub.publish, topic, value, retain=True, ttl=self._expires_s)

    def _read(self, pattern: str) -> Any:
        if not insist(self._client.pubsub.retained, pattern, limit=1):
            return None
        with insist(self._client.pubsub.subscribe, pattern) as found:
            try:
                return found.get(_READ_S).value
            except RequestTimeout:  # it has expired meanwhile
                return None

    # -- who calls the body

    def is_called(self, key: str) -> bool:
        return bool(insist(self._client.store.get, _lock(key)) == CALLED)

    def may_call(self, key: str, group: str, task: str, size: int) -> bool:
        """Whether all parts are done and this task is to call the body.

        If its worker dies first, the task may call it when it runs again.
        """
        lock, store = _lock(key), self._client.store
        if size > MAX_PARTS:
            return insist(store.incr, key) == _START + size
        if _START <= insist(store.incr, key) < _START + size:
            return False
        if self._parts(group, size) < size:
            return False
        if insist(store.set, lock, task, if_absent=True, ttl=self._expires_s):
            return True
        return bool(insist(store.get, lock) == task)

    def called(self, key: str) -> None:
        """Note that the body was called, for parts that run again."""
        insist(self._client.store.set, _lock(key), CALLED, ttl=self._expires_s)

    def begin(self, key: str) -> None:
        insist(self._client.store.set, key, _START, ttl=self._expires_s)

    def _parts(self, group: str, size: int) -> int:
        pattern = f"{self._root}/{quote(group, safe='')}/part/+"
        return len(insist(self._client.pubsub.retained, pattern, limit=size))


def _lock(key: str) -> str:
    return f"{key}-call"
