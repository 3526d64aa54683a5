"""Leases and rate limits under a key: what locks, semaphores and limiters need (SPEC O1).

Their state is an ordinary value, listed, saved, evicted and deleted like any other: the
holders of a lease are a map, a rate limit is a JSON value. A key lives as long as its state
matters.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeVar

import msgspec

from nexo.brokers.store.collections import Collections
from nexo.brokers.store.keyspace import Keyspace
from nexo.brokers.store.values import MapValue, wrong_type
from nexo.errors import InvalidInput, WrongType
from nexo.model.store import JSON_PREFIX, MAX_TTL_MS, LeaseAnswer, RateAnswer, check_ttl
from nexo.options.described import check_range

MAX_HOLDERS = 10_000
MAX_HOLDER_CHARACTERS = 255
RESERVED_MS = 600_000
"""How far ahead fencing numbers are reserved: one small synced write in that time."""
WINDOW_SLOTS = 64
"""Slots of a sliding window: its state stays small whatever the limit."""

T = TypeVar("T")
_encode = msgspec.json.Encoder().encode
_holding = msgspec.json.Decoder(tuple[int, int])
_bucket = msgspec.json.Decoder(tuple[float, int])
_window = msgspec.json.Decoder(list[tuple[int, int]])


class FencingNumbers:
    """Numbers that only grow, across restarts too: each is at least the time in microseconds."""

    __slots__ = ("_last", "_reserve", "_reserved")

    def __init__(self, after_ms: int = 0, reserve: Callable[[int], None] = lambda _: None) -> None:
        """``after_ms``: until when numbers may have been issued, by whatever clock.

        ``reserve`` notes durably until when numbers may be issued from now on.
        """
        self._last = self._reserved = after_ms * 1_000
        self._reserve = reserve

    def next(self, now_ms: int) -> int:
        """A number greater than all before it."""
        number = max(self._last + 1, now_ms * 1_000)
        if number > self._reserved:
            until_ms = number // 1_000 + RESERVED_MS
            self._reserve(until_ms)
            self._reserved = until_ms * 1_000
        self._last = number
        return number


class KeyLeases(Collections[MapValue]):
    """Up to ``limit`` holders share a key, each until its own expiry; a lock has a limit of 1."""

    __slots__ = ("_numbers",)
    _make, _called = MapValue, "leases"

    def __init__(self, keyspace: Keyspace, numbers: FencingNumbers) -> None:
        super().__init__(keyspace)
        self._numbers = numbers

    def take(self, key: str, holder: str, ttl_ms: int, limit: int, now_ms: int) -> LeaseAnswer:
        """Grant ``holder`` a lease if one is free; a holder's own lease is renewed."""
        check_ttl(ttl_ms)
        check_range("limit", limit, MAX_HOLDERS, 1)
        check_range("the length of a holder's name", len(holder), MAX_HOLDER_CHARACTERS, 1)
        held = self._find(key, now_ms) or MapValue()
        due_ms, number = _holder(key, held, holder)
        if due_ms <= now_ms:
            dues = [_holder(key, held, name)[0] for name in held.items if name != holder]
            live = [due for due in dues if due > now_ms]
            if len(live) >= limit:
                free_ms = sorted(live)[len(live) - limit]
                due_ms = self._keyspace.expiry.due.get(key, free_ms)  # `expire` may have set it
                return LeaseAnswer(None, min(free_ms, due_ms) - now_ms)
            if len(live) < len(dues):
                over = [name for name in held.items if _holder(key, held, name)[0] <= now_ms]
                self._end(key, held, over)
            number = self._numbers.next(now_ms)
        self._put(key, holder, now_ms + ttl_ms, number, now_ms)
        return LeaseAnswer(number, 0)

    def renew(self, key: str, holder: str, ttl_ms: int, now_ms: int) -> bool:
        """Restart the holder's TTL; False if its lease has ended."""
        check_ttl(ttl_ms)
        held = self._find(key, now_ms)
        due_ms, number = _holder(key, held, holder) if held else (0, 0)
        if due_ms <= now_ms:
            return False
        self._put(key, holder, now_ms + ttl_ms, number, now_ms)
        return True

    def release(self, key: str, holder: str, now_ms: int) -> bool:
        """End the holder's lease; False if it had already ended."""
        held = self._find(key, now_ms)
        if held is None or holder not in held.items:
            return False
        alive = _holder(key, held, holder)[0] > now_ms
        self._end(key, held, [holder])
        return alive

    def _put(self, key: str, holder: str, due_ms: int, number: int, now_ms: int) -> None:
        found = self._find(key, now_ms)
        state = JSON_PREFIX + _encode((due_ms, number))
        held = self._ready(key, found, (found or MapValue()).growth_bytes({holder: state}))
        self._change(key, held, lambda held: held.put(holder, state))
        self._keyspace.set_due(key, max(due_ms, self._keyspace.expiry.due.get(key, 0)))

    def _end(self, key: str, held: MapValue, holders: list[str]) -> None:
        self._change(key, held, lambda held: sum(map(held.remove, holders)))


class RateLimits:
    """Whether something may happen now, given how often it has happened."""

    __slots__ = ("_keyspace",)

    def __init__(self, keyspace: Keyspace) -> None:
        self._keyspace = keyspace

    def bucket(
        self, key: str, capacity: float, per_second: float, cost: float, now_ms: int
    ) -> RateAnswer:
        """Take ``cost`` tokens from a bucket that refills at ``per_second`` up to ``capacity``."""
        _check_rate(capacity, cost)
        per_ms = per_second / 1_000
        if not (per_ms > 0 and capacity / per_ms <= MAX_TTL_MS):
            raise InvalidInput("a token bucket refills at a rate above 0, within 100 years")
        tokens, at_ms = self._state(key, _bucket, now_ms) or (capacity, now_ms)
        tokens = min(capacity, tokens + max(0, now_ms - at_ms) * per_ms)
        if tokens < cost:
            return RateAnswer(False, tokens, math.ceil((cost - tokens) / per_ms))
        self._put(key, (tokens - cost, now_ms), now_ms + (capacity - tokens + cost) / per_ms)
        return RateAnswer(True, tokens - cost, 0)

    def window(self, key: str, limit: int, window_ms: int, cost: int, now_ms: int) -> RateAnswer:
        """Count ``cost`` if that makes at most ``limit`` in the last ``window_ms``.

        Never more than ``limit`` in any window. Because slots are counted, freed room may be seen
        late, by up to a 64th of the window.
        """
        _check_rate(limit, cost)
        check_range("window_ms", window_ms, MAX_TTL_MS, 1)
        slots = [
            (end_ms, count)
            for end_ms, count in self._state(key, _window, now_ms) or ()
            if end_ms + window_ms > now_ms
        ]
        room = limit - sum(count for _, count in slots)
        if room < cost:
            return RateAnswer(False, room, _freed_ms(slots, cost - room) + window_ms - now_ms)
        slot_ms = max(1, math.ceil(window_ms / WINDOW_SLOTS))
        end_ms = (now_ms // slot_ms + 1) * slot_ms
        if slots and slots[-1][0] >= end_ms:
            end_ms, before = slots.pop()
            cost_there = before + cost
        else:
            cost_there = cost
        self._put(key, [*slots, (end_ms, cost_there)], end_ms + window_ms)
        return RateAnswer(True, room - cost, 0)

    def _state(self, key: str, decoder: msgspec.json.Decoder[T], now_ms: int) -> T | None:
        value = self._keyspace.find(key, now_ms)
        if value is None:
            return None
        if isinstance(value, bytes):
            return _decoded(decoder, value, key, "the state of this rate limit")
        raise wrong_type(key, value, "a rate limit")

    def _put(self, key: str, state: object, due_ms: float) -> None:
        self._keyspace.put(key, JSON_PREFIX + _encode(state))
        self._keyspace.set_due(key, math.ceil(due_ms))


def _freed_ms(slots: list[tuple[int, int]], needed: int) -> int:
    """The end of the slot after which ``needed`` have expired."""
    for end_ms, count in slots:
        needed -= count
        if needed <= 0:
            return end_ms
    raise AssertionError("a cost is at most the limit")


def _holder(key: str, held: MapValue, holder: str) -> tuple[int, int]:
    """A holder's expiry and number; zeros for none."""
    value = held.items.get(holder)
    return (0, 0) if value is None else _decoded(_holding, value, key, "leases")


def _decoded(decoder: msgspec.json.Decoder[T], value: bytes, key: str, what: str) -> T:
    try:
        return decoder.decode(value[1:])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise WrongType(f"key {key[:64]!r} does not hold {what}") from None


def _check_rate(limit: float, cost: float) -> None:
    if not (0 < limit < math.inf and 0 < cost <= limit):
        raise InvalidInput(
            f"a cost of {cost} does not fit a limit of {limit}: use 0 < cost <= limit"
        )
