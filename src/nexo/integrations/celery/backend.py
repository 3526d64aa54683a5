"""Celery's results in the store: ``result_backend = "nexo://…"`` (SPEC M1).

Each result is a key that lives for ``result_expires``. Whoever waits for one does not poll: a
message to the topic of the same name says that it is there. What chords need is on disk too, see
`chords`.
"""

from __future__ import annotations

import atexit
import os
import socket
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import cache, cached_property
from typing import Any
from urllib.parse import urlsplit

from celery import states
from celery.backends.base import KeyValueStoreBackend
from celery.exceptions import TimeoutError as CeleryTimeoutError
from kombu.utils.encoding import bytes_to_str
from kombu.utils.url import maybe_sanitize_url

from nexo.client._sync.client import Client
from nexo.errors import ConnectionLost, RequestTimeout, Unavailable
from nexo.integrations.celery.chords import Chords, insist

_CHECK_S = 5.0
"""How often a waiter looks by itself: a lost connection loses messages, but no results."""
_FIRST_PAUSE_S = 0.005
_KEYS_AT_ONCE = 1_000
_PASSING = (ConnectionLost, RequestTimeout, Unavailable)
_OPTIONS = ("ca_file", "cert_file", "connect_timeout", "ping", "timeout", "token", "verify")


class CeleryResultBackend(KeyValueStoreBackend):
    """Results of tasks and groups, and the counters of chords."""

    supports_native_join = True
    supports_autoexpire = True
    implements_incr = True
    persistent = True

    def __init__(
        self, url: str | None = None, app: Any = None, expires: Any = None, **kwargs: Any
    ) -> None:
        super().__init__(app=app, url=url, **kwargs)
        self.url = url
        self.expires = self.prepare_expires(expires, type=int)
        self._verdict: int | None = None
        """What `incr` returns to Celery's code for chords; this object belongs to one thread."""

    def as_uri(self, include_password: bool = False) -> str:
        url = self.url or "nexo://"
        return url if include_password else str(maybe_sanitize_url(url))

    @cached_property
    def nexo(self) -> Client:
        """The client, which this process's backends share; after a fork it connects again."""
        given = self.app.conf.get("result_backend_transport_options") or {}
        options = {name: given[name] for name in _OPTIONS if name in given}
        url = self.url if self.url and urlsplit(self.url).hostname else None
        return _client(url, tuple(options.items()))

    @cached_property
    def _chords(self) -> Chords:
        given = self.app.conf.get("result_backend_transport_options") or {}
        return Chords(self.nexo, given.get("global_keyprefix") or "", self.expires)

    def exception_safe_to_retry(self, exc: Exception) -> bool:
        """With ``result_backend_always_retry``."""
        return isinstance(exc, _PASSING)

    # -- keys

    def get(self, key: bytes | str) -> Any:
        return insist(self.nexo.store.get, bytes_to_str(key))

    def mget(self, keys: Iterable[bytes | str]) -> list[Any]:
        """Values in the order of their keys, None where there is none."""
        names = [bytes_to_str(key) for key in keys]
        found: list[Any] = []
        for start in range(0, len(names), _KEYS_AT_ONCE):
            found += insist(self.nexo.store.mget, names[start : start + _KEYS_AT_ONCE])
        return found

    def set(self, key: bytes | str, value: Any) -> None:
        insist(self.nexo.store.set, bytes_to_str(key), value, ttl=self.expires or None)

    def _set_with_state(self, key: bytes | str, value: Any, state: str) -> None:
        self.set(key, value)
        if state in states.READY_STATES:
            with suppress(*_PASSING):  # waiters look by themselves, a little later
                self.nexo.pubsub.publish(_topic(key), b"")

    def delete(self, key: bytes | str) -> None:
        insist(self.nexo.store.delete, bytes_to_str(key))

    def incr(self, key: bytes | str) -> int:
        if self._verdict is not None:
            return self._verdict
        return int(self.nexo.store.incr(bytes_to_str(key)))

    def expire(self, key: bytes | str, value: Any) -> None:
        if value:
            insist(self.nexo.store.expire, bytes_to_str(key), value)

    # -- chords

    def _apply_chord_incr(self, header_result_args: Any, body: Any, **kwargs: Any) -> None:
        super()._apply_chord_incr(header_result_args, body, **kwargs)
        self._chords.begin(bytes_to_str(self.get_key_for_chord(header_result_args[0])))

    def _save_group(self, group_id: str, result: Any) -> Any:
        self._chords.keep_group(group_id, self.encode({"result": result.as_tuple()}))
        return super()._save_group(group_id, result)

    def _restore_group(self, group_id: str) -> Any:
        found = super()._restore_group(group_id)
        if found is None and (kept := self._chords.group(group_id)) is not None:
            self.set(self.get_key_for_group(group_id), kept)
            found = super()._restore_group(group_id)
        return found

    def _delete_group(self, group_id: str) -> None:
        super()._delete_group(group_id)
        self._chords.forget(group_id)

    def on_chord_part_return(self, request: Any, state: str, result: Any, **kwargs: Any) -> None:
        """Call the body of a chord if this was the last of its parts."""
        group = request.group
        if not group or self._chords.is_called(key := bytes_to_str(self.get_key_for_chord(group))):
            return
        self._keep_part(request, state, result)
        deps = self.app.GroupResult.restore(group, backend=self)
        size = 0 if deps is None else request.chord.get("chord_size") or len(deps)
        last = bool(size) and self._chords.may_call(key, group, request.id, size)
        self._verdict = size if last else -1
        try:
            super().on_chord_part_return(request, state, result, **kwargs)
        finally:
            self._verdict = None
        if last:
            self._chords.called(key)

    def _keep_part(self, request: Any, state: str, result: Any) -> None:
        encoded = self.encode_result(result, state)
        meta = self._get_result_meta(encoded, state, None, request) | {"task_id": request.id}
        self._chords.keep_part(request.group, request.id, self.encode(meta))

    # -- waiting

    def wait_for(
        self,
        task_id: str,
        timeout: float | None = None,
        interval: float = 0.5,
        no_ack: bool = True,
        on_interval: Any = None,
    ) -> Any:
        self._ensure_not_eager()
        deadline_s = None if timeout is None else time.monotonic() + timeout
        pause_s = min(interval, _CHECK_S) if on_interval else _CHECK_S
        topic = _topic(self.get_key_for_task(task_id))
        with insist(self.nexo.pubsub.subscribe, topic, retained=False) as ready:
            while (meta := self.get_task_meta(task_id))["status"] not in states.READY_STATES:
                if on_interval:
                    on_interval()
                left_s = pause_s if deadline_s is None else deadline_s - time.monotonic()
                if left_s <= 0:
                    raise CeleryTimeoutError("The operation timed out.")
                with suppress(RequestTimeout):
                    ready.get(min(pause_s, left_s))
        return meta

    def get_many(
        self,
        task_ids: Iterable[str],
        timeout: float | None = None,
        interval: float | None = 0.5,
        no_ack: bool = True,
        on_message: Any = None,
        on_interval: Any = None,
        max_iterations: int | None = None,
        READY_STATES: Any = states.READY_STATES,  # noqa: N803 - Celery's name
    ) -> Iterator[tuple[str, Any]]:
        """Results as they come; looks often at first, then every ``interval``."""
        longest_s = 0.5 if interval is None else interval
        deadline_s = None if not timeout else time.monotonic() + timeout
        left, rounds, pause_s = {bytes_to_str(task_id) for task_id in task_ids}, 0, _FIRST_PAUSE_S
        while left:
            found = dict(self._ready(left, READY_STATES))
            left -= found.keys()
            pause_s = _FIRST_PAUSE_S if found else min(pause_s * 1.5, longest_s)
            for task_id, meta in found.items():
                if on_message is not None:
                    on_message(meta)
                yield task_id, meta
            rounds += 1
            if not left or (max_iterations and rounds >= max_iterations):
                return
            if deadline_s is not None and time.monotonic() >= deadline_s:
                raise CeleryTimeoutError(f"Operation timed out ({timeout})")
            if on_interval:
                on_interval()
            time.sleep(pause_s)

    def _ready(self, task_ids: Iterable[str], ready: Any) -> Iterator[tuple[str, Any]]:
        names = list(task_ids)
        values = self.mget([self.get_key_for_task(name) for name in names])
        for name, found in zip(names, values, strict=True):
            in_chord = self._verdict is not None
            value = self._chords.part(name) if found is None and in_chord else found
            meta = None if value is None else self.decode_result(value)
            if meta is not None and meta["status"] in ready:
                self._cache[name] = meta
                yield name, meta

    def __reduce__(self, args: Any = (), kwargs: Any = None) -> Any:
        return super().__reduce__(args, {"url": self.url, "expires": self.expires} | (kwargs or {}))


@cache
def _client(url: str | None, options: tuple[tuple[str, Any], ...]) -> Client:
    """Celery makes a backend for each thread and closes none."""
    name = f"celery results {os.getpid()}@{socket.gethostname()}"
    client = Client(url, **{"client": name} | dict(options))
    atexit.register(client.close)
    return client


def _topic(key: bytes | str) -> str:
    return f"celery/ready/{bytes_to_str(key)}"
