"""Celery's results in the store: ``result_backend = "nexo://…"`` (SPEC M1).

Each result is a key that lives for ``result_expires``. Whoever waits for one does not poll: a
message to the topic of the same name says that it is there. What chords need is on disk too, see
`chords`.
"""

from __future__ import annotations

import atexit
import logging
import math
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
from celery.canvas import maybe_signature
from celery.exceptions import ChordError
from celery.exceptions import TimeoutError as CeleryTimeoutError
from celery.result import GroupResult
from celery.utils.functional import _regen as regen
from kombu.utils.encoding import bytes_to_str
from kombu.utils.url import maybe_sanitize_url

from nexo.client._sync.client import Client
from nexo.errors import ConnectionLost, RequestTimeout, Unavailable
from nexo.integrations.celery.chords import Chord, insist

_CHECK_S = 5.0
"""How often a waiter looks by itself: a lost connection loses messages, but no results."""
_FIRST_PAUSE_S = 0.005
_KEYS_AT_ONCE = 1_000
_PASSING = (ConnectionLost, RequestTimeout, Unavailable)
log = logging.getLogger("nexo.integrations")
_OPTIONS = ("ca_file", "cert_file", "connect_timeout", "ping", "timeout", "token", "verify")


class CeleryResultBackend(KeyValueStoreBackend):
    """Results of tasks and groups; chords call their body from what is kept of their parts."""

    supports_native_join = True
    supports_autoexpire = True
    persistent = True

    def __init__(
        self, url: str | None = None, app: Any = None, expires: Any = None, **kwargs: Any
    ) -> None:
        super().__init__(app=app, url=url, **kwargs)
        self.url = url
        self.expires = self.prepare_expires(expires, type=int)

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

    def _chord(self, group: str) -> Chord:
        given = self.app.conf.get("result_backend_transport_options") or {}
        key = bytes_to_str(self.get_key_for_chord(group))
        return Chord(self.nexo, given.get("global_keyprefix") or "", key, group, self.expires)

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

    def expire(self, key: bytes | str, value: Any) -> None:
        if value:
            insist(self.nexo.store.expire, bytes_to_str(key), value)

    # -- chords

    def apply_chord(self, header_result_args: Any, body: Any, **kwargs: Any) -> None:
        """Begin to count parts; groups within the header give the results their shape."""
        self.ensure_chords_allowed()
        group, parts = header_result_args[0], header_result_args[1]
        chord = self._chord(group)
        chord.begin()
        if isinstance(parts, regen):
            return  # a generator: its tasks are made while they are sent
        header = self.app.GroupResult(*header_result_args)
        if any(isinstance(part, GroupResult) for part in header.results):
            shape = [part.as_tuple() for part in header.results]
            chord.keep_shape(self.encode(shape))
            chord.set_size(sum(map(_leaves, shape)))

    def set_chord_size(self, group_id: str, chord_size: int) -> None:
        """Celery knows it once it sends the last part."""
        self._chord(group_id).set_size(chord_size)

    def add_to_chord(self, group_id: str, result: Any) -> None:
        self._chord(group_id).add_part(result.id)

    def on_chord_part_return(self, request: Any, state: str, result: Any, **kwargs: Any) -> None:
        """Call the body of a chord if this was the last of its parts."""
        if not request.group or not request.id:
            return
        chord = self._chord(request.group)
        if chord.is_called():
            return
        index = getattr(request, "group_index", None)
        kept = [index, state, self.encode_result(result, state)]
        chord.keep_part(request.id, self.encode(kept))
        if chord.may_call(request.id):
            self._call_body(chord, maybe_signature(request.chord, app=self.app))
            chord.called()

    def _call_body(self, chord: Chord, body: Any) -> None:
        try:
            results = self._part_results(chord)
        except ChordError as error:
            log.error("chord %s failed: %s", chord.group, error)
            self.chord_error_from_stack(body, error)
            return
        try:
            body.delay(results)
        except Exception as error:
            log.exception("chord %s could not call its body", chord.group)
            failure = ChordError(f"Callback error: {error!r}")
            failure.__cause__ = error
            self.chord_error_from_stack(body, failure)

    def _part_results(self, chord: Chord) -> list[Any]:
        """The parts' results in the header's order and shape, from what is kept of each."""
        kept = {task: self.decode(part) for task, part in chord.parts().items()}
        ordered = sorted(kept, key=lambda task: _order(kept[task][0]))
        results = {task: self._part_result(task, *kept[task][1:]) for task in ordered}
        if (shape := chord.shape()) is None:
            return list(results.values())
        added = chord.added()
        shaped = [self._shaped(part, results) for part in self.decode(shape)]
        return shaped + [results[task] for task in ordered if task in added]

    def _part_result(self, task: str, state: str, result: Any) -> Any:
        if state in states.EXCEPTION_STATES:
            result = self.exception_to_python(result)
        if state in states.PROPAGATE_STATES:
            error = ChordError(f"Dependency {task} raised {result!r}")
            raise error from (result if isinstance(result, Exception) else None)
        return result

    def _shaped(self, part: Any, results: dict[str, Any]) -> Any:
        (task, _), parts = part
        if parts is not None:
            return [self._shaped(each, results) for each in parts]
        if task in results:
            return results[task]
        meta = self._get_task_meta_for(task)  # it ended as something else than a part
        if meta["status"] not in states.READY_STATES:
            raise ChordError(f"Dependency {task} has no result")
        return self._part_result(task, meta["status"], meta["result"])

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
        if on_interval and meta["status"] in states.PROPAGATE_STATES:
            on_interval()  # raises the error of a part rather than that of its chord
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
            meta = None if found is None else self.decode_result(found)
            if meta is not None and meta["status"] in ready:
                self._cache[name] = meta
                yield name, meta

    def __reduce__(self, args: Any = (), kwargs: Any = None) -> Any:
        return super().__reduce__(args, {"url": self.url, "expires": self.expires} | (kwargs or {}))


def _order(index: Any) -> float:
    """By the place in the header; parts without one come last, as they came."""
    return math.inf if index is None else float(index)


def _leaves(result: Any) -> int:
    """How many tasks a result that Celery wrote as a tuple stands for."""
    _, parts = result
    return 1 if parts is None else sum(map(_leaves, parts))


@cache
def _client(url: str | None, options: tuple[tuple[str, Any], ...]) -> Client:
    """Celery makes a backend for each thread and closes none."""
    name = f"celery results {os.getpid()}@{socket.gethostname()}"
    client = Client(url, **{"client": name} | dict(options))
    atexit.register(client.close)
    return client


def _topic(key: bytes | str) -> str:
    return f"celery/ready/{bytes_to_str(key)}"
