"""The store's rules for keys and plain values (SPEC B1-B3).

Every command takes the current time, and either succeeds completely or raises and changes
nothing. An expired key does not exist, whether or not its memory has been reclaimed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from fnmatch import translate
from itertools import takewhile

import msgspec

from nexo.brokers.store.collections import ListCommands, MapCommands, SetCommands
from nexo.brokers.store.coordination import FencingNumbers, KeyLeases, RateLimits
from nexo.brokers.store.keyspace import ENTRY_BYTES, Keyspace, check_key
from nexo.brokers.store.values import ZERO, StoreValue, add_number, kind_of, value_bytes, wrong_type
from nexo.errors import InvalidInput
from nexo.limits import PAGE_BYTES
from nexo.model.store import JSON_PREFIX, KeyInfo, KeysPage, SetResult, check_ttl
from nexo.options.described import check_range

SCAN_LOOKS = 500
"""Non-matching keys that a page skips before it ends short, so that no scan blocks the loop."""


class StoreEngine:
    """All commands on keys.

    Those on collections are in ``maps``, ``lists`` and ``sets``, locks and semaphores in
    ``leases``, rate limits in ``rates``.
    """

    __slots__ = ("_numbers", "keyspace", "leases", "lists", "maps", "rates", "sets")

    def __init__(
        self,
        max_bytes: int = 0,
        max_reply_bytes: int = 0,
        numbers: FencingNumbers | None = None,
    ) -> None:
        """Above ``max_bytes`` keys are evicted; no reply has values of more than
        ``max_reply_bytes`` (0 for no limit).
        """
        self._numbers = numbers or FencingNumbers()
        self._use(Keyspace(max_bytes, max_reply_bytes))

    def _use(self, keyspace: Keyspace) -> None:
        self.keyspace = keyspace
        self.maps = MapCommands(keyspace)
        self.lists = ListCommands(keyspace)
        self.sets = SetCommands(keyspace)
        self.leases = KeyLeases(keyspace, self._numbers)
        self.rates = RateLimits(keyspace)

    # -- one plain value ------------------------------------------------------

    def get(self, key: str, now_ms: int) -> bytes | None:
        value = self.keyspace.find(key, now_ms)
        if value is None or value.__class__ is bytes:
            return value
        raise wrong_type(key, value, "a plain value")

    def put(self, key: str, value: bytes) -> None:
        """Set ``key`` without condition or TTL, whatever it held."""
        self.keyspace.put(key, value)
        if self.keyspace.expiry.due:
            self.keyspace.expiry.clear(key)

    def set(
        self,
        key: str,
        value: bytes,
        now_ms: int,
        *,
        ttl_ms: int | None = None,
        keep_ttl: bool = False,
        if_absent: bool = False,
        if_equal: bytes | None = None,
        get_previous: bool = False,
    ) -> SetResult:
        """Set ``key`` if the condition holds; ``if_equal`` compares as `same_value` does."""
        _check_set(ttl_ms, keep_ttl, if_absent, if_equal)
        held = self.keyspace.peek(key, now_ms)
        needs_plain = get_previous or if_equal is not None
        if needs_plain and held is not None and not isinstance(held, bytes):
            raise wrong_type(key, held, "a plain value")
        previous = held if get_previous and isinstance(held, bytes) else None
        if (if_absent and held is not None) or (if_equal is not None and not _is(held, if_equal)):
            return SetResult(False, previous)
        self.keyspace.put(key, value)
        if ttl_ms is not None:
            self.keyspace.set_due(key, now_ms + ttl_ms)
        elif not keep_ttl:
            self.keyspace.clear_due(key)
        return SetResult(True, previous)

    def getdel(self, key: str, now_ms: int) -> bytes | None:
        """Delete ``key`` and return its value."""
        value = self.get(key, now_ms)
        if value is not None:
            self.keyspace.drop(key)
        return value

    def incr(
        self, key: str, by: int | float, now_ms: int, ttl_ms: int | None = None
    ) -> int | float:
        """Add to a number, which starts at 0; ``ttl_ms`` applies only to a new key."""
        if ttl_ms is not None:
            check_ttl(ttl_ms)
        held = self.get(key, now_ms)
        total, value = add_number(ZERO if held is None else held, by, f"key {key[:64]!r}")
        self.keyspace.put(key, value)
        if held is None and ttl_ms is not None:
            self.keyspace.set_due(key, now_ms + ttl_ms)
        return total

    # -- several values -------------------------------------------------------

    def mget(self, keys: Sequence[str], now_ms: int) -> list[bytes | None]:
        """The values of ``keys`` in order; None where there is none."""
        return self.keyspace.bounded(self.get(key, now_ms) for key in keys)

    def mset(self, values: Mapping[str, bytes], now_ms: int, ttl_ms: int | None = None) -> None:
        """Set all keys, with one TTL or none."""
        if ttl_ms is not None:
            check_ttl(ttl_ms)
        for key, value in values.items():
            check_key(key)
            self.keyspace.check_room(key, len(value))
        for key, value in values.items():
            self.put(key, value)
            # A later key of the same batch can evict an earlier one, never itself.
            if ttl_ms is not None:
                self.keyspace.set_due(key, now_ms + ttl_ms)

    def delete(self, keys: Sequence[str], now_ms: int) -> int:
        """Delete keys of any type; returns how many existed."""
        live = [key for key in dict.fromkeys(keys) if self.keyspace.peek(key, now_ms) is not None]
        for key in live:
            self.keyspace.drop(key)
        return len(live)

    def delete_if(self, key: str, if_equal: bytes, now_ms: int) -> bool:
        """Delete ``key`` if its value equals ``if_equal``; see `same_value`."""
        held = self.keyspace.peek(key, now_ms)
        if held is not None and not isinstance(held, bytes):
            raise wrong_type(key, held, "a plain value")
        return _is(held, if_equal) and self.keyspace.drop(key) is not None

    def exists(self, keys: Sequence[str], now_ms: int) -> int:
        """How many of ``keys`` exist; a key named twice counts twice. Not counted as a use."""
        return sum(self.keyspace.peek(key, now_ms) is not None for key in keys)

    # -- life time ------------------------------------------------------------

    def expire(self, key: str, ttl_ms: int, now_ms: int) -> bool:
        """Give ``key`` a new TTL; False if there is no such key."""
        check_ttl(ttl_ms)
        if self.keyspace.peek(key, now_ms) is None:
            return False
        self.keyspace.set_due(key, now_ms + ttl_ms)
        return True

    def persist(self, key: str, now_ms: int) -> bool:
        """Remove the TTL of ``key``; False if there is no such key or it had none."""
        return self.keyspace.peek(key, now_ms) is not None and self.keyspace.clear_due(key)

    def inspect(self, key: str, now_ms: int) -> KeyInfo | None:
        """Type, size and remaining TTL of ``key``."""
        value = self.keyspace.peek(key, now_ms)
        if value is None:
            return None
        due_ms = self.keyspace.expiry.due.get(key)
        return KeyInfo(
            kind_of(value),
            1 if isinstance(value, bytes) else len(value),
            ENTRY_BYTES + len(key) + value_bytes(value),
            None if due_ms is None else due_ms - now_ms,
        )

    # -- all keys -------------------------------------------------------------

    def scan(
        self, now_ms: int, *, prefix: str = "", glob: str = "", cursor: str = "", limit: int = 100
    ) -> KeysPage:
        """A page of keys in code point order that begin with ``prefix`` and match ``glob``.

        A key that exists from the first page to the last is returned exactly once, whatever else
        changes; one created or deleted meanwhile is returned at most once. A page may be short,
        even empty, and still have a cursor: see `SCAN_LOOKS`.
        """
        check_range("limit", limit, low=1)
        matches = re.compile(translate(glob)).match if glob else bool
        start = max(prefix, _literal_prefix(glob))
        keys: list[str] = []
        missed = size = 0
        inside = takewhile(
            lambda key: key.startswith(start), self.keyspace.index.walk(cursor, start)
        )
        for key in inside:
            if key.startswith(prefix) and matches(key) and self._is_live(key, now_ms):
                keys.append(key)
                size += len(key)
            else:
                missed += 1
            if len(keys) == limit or missed == SCAN_LOOKS or size >= PAGE_BYTES:
                return KeysPage(keys, key)
        return KeysPage(keys, None)

    def _is_live(self, key: str, now_ms: int) -> bool:
        due_ms = self.keyspace.expiry.due.get(key)
        return due_ms is None or due_ms > now_ms

    def clear(self, now_ms: int = 0) -> int:
        """Delete every key, at whatever time; returns how many there were. Counters are kept."""
        count = len(self.keyspace)
        old = self.keyspace
        self._use(Keyspace(old.max_bytes, old.max_reply_bytes))
        self.keyspace.evicted, self.keyspace.expired = old.evicted, old.expired
        self.keyspace.changes = old.changes + 1
        return count


def same_value(left: bytes, right: bytes) -> bool:
    """Equal bytes, or JSON that differs only in spacing, escapes and the order of members."""
    if left == right or left[:1] != right[:1] or left[:1] != JSON_PREFIX:
        return left == right
    try:
        return _canonical(left) == _canonical(right)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False


def _canonical(value: bytes) -> bytes:
    return msgspec.json.encode(msgspec.json.decode(value[1:]), order="sorted")


def _is(held: StoreValue | None, expected: bytes) -> bool:
    return isinstance(held, bytes) and same_value(held, expected)


def _check_set(ttl_ms: int | None, keep_ttl: bool, if_absent: bool, if_equal: bytes | None) -> None:
    if ttl_ms is not None:
        check_ttl(ttl_ms)
        if keep_ttl:
            raise InvalidInput("give either a TTL or keep_ttl, not both")
    if if_absent and if_equal is not None:
        raise InvalidInput("give either if_absent or if_equal, not both")


def _literal_prefix(glob: str) -> str:
    return re.split(r"[*?\[]", glob, maxsplit=1)[0]
