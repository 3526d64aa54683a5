"""The store against a model that is obviously right and obviously slow (SPEC B1-B3)."""

from __future__ import annotations

from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from nexo.brokers.store.engine import StoreEngine
from nexo.brokers.store.index import OrderedKeys
from nexo.brokers.store.keyspace import ENTRY_BYTES
from nexo.brokers.store.values import ITEM_BYTES
from nexo.errors import InvalidInput, PayloadTooLarge, WrongType
from nexo.services.store import snapshot
from tests.memory_files import MemoryFiles

KEYS = st.sampled_from(["a", "ab", "abc", "b", "é🙂", "user:1", "user:2", "z" * 40])
VALUES = st.sampled_from([b"\x00", b"\x01text", b"\x0217", b"\x02-1.5", b"\x00" * 300])
TTLS = st.integers(1, 2_000)
MAYBE_TTL = st.none() | TTLS


class Model:
    """Every entry as ``(value, due)`` in order of use; everything found by looking at all."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.now = 1_000_000
        self.entries: dict[str, tuple[Any, float]] = {}

    def live(self) -> dict[str, Any]:
        return {key: value for key, (value, due) in self.entries.items() if due > self.now}

    def use(self, key: str) -> Any:
        if key in self.entries:
            self.entries[key] = self.entries.pop(key)
            return self.entries[key][0]
        return None

    def size(self, key: str, value: Any) -> int:
        total = ENTRY_BYTES + len(key)
        if isinstance(value, bytes):
            return total + len(value)
        if isinstance(value, dict):
            return total + sum(len(f) + len(v) + ITEM_BYTES for f, v in value.items())
        return total + sum(len(item) + ITEM_BYTES for item in value)

    def fits(self, key: str, value: Any) -> bool:
        return not self.max_bytes or self.size(key, value) <= self.max_bytes

    def put(self, key: str, value: Any, due: float) -> None:
        self.entries.pop(key, None)
        self.entries[key] = (value, due)

    def used(self) -> int:
        return sum(self.size(key, value) for key, (value, _) in self.entries.items())

    def due(self, key: str) -> float:
        return self.entries[key][1] if key in self.entries else float("inf")


class StoreMachine(RuleBasedStateMachine):
    """Random commands and time jumps; after each, both must show the same."""

    @initialize(max_bytes=st.sampled_from([0, 0, 1_500, 4_000]))
    def start(self, max_bytes: int) -> None:
        self.store = StoreEngine(max_bytes)
        self.model = Model(max_bytes)

    @property
    def now(self) -> int:
        return self.model.now

    def settle(self) -> None:
        """Evict from the model what the store may have evicted: oldest uses first, and no more."""
        model = self.model
        held = set(self.store.keyspace.index.walk(""))
        while model.max_bytes and model.used() > model.max_bytes:
            model.entries.pop(next(iter(model.entries)))
        # Expired keys may or may not have been reclaimed; live ones must agree exactly.
        assert set(model.live()) <= held
        model.entries = {key: entry for key, entry in model.entries.items() if key in held}
        assert held == set(model.entries)

    def expects(self, error: type[Exception] | None, call: Any) -> Any:
        if error is None:
            return call()
        before = self.store.keyspace.used_bytes
        with pytest.raises(error):
            call()
        assert self.store.keyspace.used_bytes <= before  # at most an expired key went
        return None

    # -- time -----------------------------------------------------------------

    @rule(by=st.integers(0, 3_000))
    def time_passes(self, by: int) -> None:
        self.model.now += by

    @rule(limit=st.integers(1, 5))
    def sweep(self, limit: int) -> None:
        assert self.store.keyspace.sweep(self.now, limit) <= limit
        held = set(self.store.keyspace.index.walk(""))
        assert set(self.model.live()) <= held
        self.model.entries = {k: e for k, e in self.model.entries.items() if k in held}

    # -- plain values -----------------------------------------------------------

    @rule(key=KEYS, value=VALUES, ttl=MAYBE_TTL, keep=st.booleans(), absent=st.booleans())
    def set(self, key: str, value: bytes, ttl: int | None, keep: bool, absent: bool) -> None:
        model, live = self.model, self.model.live()
        keep = keep and ttl is None
        done = not (absent and key in live)
        error = PayloadTooLarge if done and not model.fits(key, value) else None
        result = self.expects(
            error,
            lambda: self.store.set(
                key, value, self.now, ttl_ms=ttl, keep_ttl=keep, if_absent=absent
            ),
        )
        self.drop_if_expired(key)
        if result is None:
            return
        assert result.done is done
        if done:
            due = self.now + ttl if ttl else model.due(key) if keep else float("inf")
            model.put(key, value, due)
        self.settle()

    @rule(key=KEYS, value=VALUES, expected=VALUES)
    def compare_and_set(self, key: str, value: bytes, expected: bytes) -> None:
        live = self.model.live()
        wrong = key in live and not isinstance(live[key], bytes)
        equal = live.get(key) == expected
        too_large = equal and not self.model.fits(key, value)
        error = WrongType if wrong else PayloadTooLarge if too_large else None
        result = self.expects(
            error, lambda: self.store.set(key, value, self.now, if_equal=expected)
        )
        self.drop_if_expired(key)
        if result is not None:
            assert result.done is equal
            if equal:
                self.model.put(key, value, float("inf"))
            self.settle()

    @rule(key=KEYS)
    def get(self, key: str) -> None:
        live = self.model.live()
        wrong = key in live and not isinstance(live[key], bytes)
        found = self.expects(WrongType if wrong else None, lambda: self.store.get(key, self.now))
        assert found == (None if wrong else live.get(key))
        self.drop_if_expired(key)
        if key in self.model.entries:
            self.model.entries[key] = self.model.entries.pop(key)

    @rule(keys=st.lists(KEYS, max_size=4))
    def delete(self, keys: list[str]) -> None:
        live = self.model.live()
        assert self.store.delete(keys, self.now) == len(set(keys) & set(live))
        for key in keys:
            self.model.entries.pop(key, None)

    @rule(key=KEYS, ttl=TTLS)
    def expire(self, key: str, ttl: int) -> None:
        live = key in self.model.live()
        assert self.store.expire(key, ttl, self.now) is live
        self.drop_if_expired(key)
        if live:
            value, _ = self.model.entries[key]
            self.model.entries[key] = (value, self.now + ttl)

    @rule(key=KEYS)
    def persist(self, key: str) -> None:
        had = key in self.model.live() and self.model.due(key) != float("inf")
        assert self.store.persist(key, self.now) is had
        self.drop_if_expired(key)
        if had:
            self.model.entries[key] = (self.model.entries[key][0], float("inf"))

    @rule(key=KEYS, by=st.sampled_from([1, -3, 0.25]))
    def incr(self, key: str, by: float) -> None:
        value = self.model.live().get(key, b"\x020")
        countable = isinstance(value, bytes) and value[:1] == b"\x02"
        total = self.expects(
            None if countable else WrongType, lambda: self.store.incr(key, by, self.now)
        )
        self.drop_if_expired(key)
        if countable:
            assert total == float(value[1:]) + by
            self.model.put(key, b"\x02" + repr(total).encode(), self.model.due(key))
        elif key in self.model.entries:
            self.model.entries[key] = self.model.entries.pop(key)
        self.settle()

    # -- collections --------------------------------------------------------------

    def of_kind(self, key: str, kind: type) -> Any:
        """The live collection, None if another kind is there; a use of the key either way."""
        self.drop_if_expired(key)
        value = self.model.use(key)
        return kind() if value is None else value if isinstance(value, kind) else None

    def drop_if_expired(self, key: str) -> None:
        if key not in self.model.live():
            self.model.entries.pop(key, None)

    def change(self, key: str, after: Any, call: Any) -> Any:
        """Run ``call``, which leaves ``after`` under the key, or refuses."""
        too_large = bool(after) and not self.model.fits(key, after)
        result = self.expects(PayloadTooLarge if too_large else None, call)
        if not too_large:
            due = self.model.due(key)
            if after:
                self.model.put(key, after, due)
            else:
                self.model.entries.pop(key, None)
        self.settle()
        return result

    @rule(key=KEYS, fields=st.dictionaries(st.sampled_from("xyz"), VALUES, min_size=1))
    def map_set(self, key: str, fields: dict[str, bytes]) -> None:
        held = self.of_kind(key, dict)
        if held is None:
            self.expects(WrongType, lambda: self.store.maps.set(key, fields, self.now))
            return
        new = self.change(key, held | fields, lambda: self.store.maps.set(key, fields, self.now))
        assert new in (None, len(set(fields) - set(held)))

    @rule(key=KEYS, names=st.lists(st.sampled_from("xyz")))
    def map_delete(self, key: str, names: list[str]) -> None:
        held = self.of_kind(key, dict)
        if held is None:
            self.expects(WrongType, lambda: self.store.maps.delete(key, names, self.now))
            return
        after = {name: value for name, value in held.items() if name not in names}
        gone = self.change(key, after, lambda: self.store.maps.delete(key, names, self.now))
        assert gone == len(held) - len(after)

    @rule(key=KEYS, values=st.lists(VALUES, min_size=1, max_size=3), left=st.booleans())
    def list_push(self, key: str, values: list[bytes], left: bool) -> None:
        held = self.of_kind(key, list)
        if held is None:
            self.expects(WrongType, lambda: self.store.lists.push(key, values, self.now))
            return
        after = values[::-1] + held if left else held + values
        self.change(key, after, lambda: self.store.lists.push(key, values, self.now, left=left))

    @rule(key=KEYS, count=st.integers(1, 3), left=st.booleans())
    def list_pop(self, key: str, count: int, left: bool) -> None:
        held = self.of_kind(key, list)
        if held is None:
            self.expects(WrongType, lambda: self.store.lists.pop(key, count, self.now))
            return
        cut = held[:count] if left else held[::-1][:count]
        after = held[count:] if left else held[: max(0, len(held) - count)]
        taken = self.change(
            key, after, lambda: self.store.lists.pop(key, count, self.now, left=left)
        )
        assert taken == cut

    @rule(key=KEYS, start=st.integers(-5, 5), stop=st.none() | st.integers(-5, 5))
    def list_trim(self, key: str, start: int, stop: int | None) -> None:
        held = self.of_kind(key, list)
        if held is None:
            self.expects(WrongType, lambda: self.store.lists.trim(key, start, stop, self.now))
            return
        assert self.store.lists.range(key, start, stop, self.now) == held[start:stop]
        self.change(
            key, held[start:stop], lambda: self.store.lists.trim(key, start, stop, self.now)
        )

    @rule(key=KEYS, members=st.lists(VALUES, min_size=1, max_size=3), add=st.booleans())
    def set_change(self, key: str, members: list[bytes], add: bool) -> None:
        held = self.of_kind(key, frozenset)
        command = self.store.sets.add if add else self.store.sets.remove
        if held is None:
            self.expects(WrongType, lambda: command(key, members, self.now))
            return
        after = held | set(members) if add else held - set(members)
        count = self.change(key, after, lambda: command(key, members, self.now))
        assert count in (None, abs(len(after) - len(held)))

    # -- looking ----------------------------------------------------------------

    @rule(glob=st.sampled_from(["", "*", "a*", "user:?", "[ab]*", "*🙂"]), limit=st.integers(1, 4))
    def scan(self, glob: str, limit: int) -> None:
        found: list[str] = []
        cursor: str | None = ""
        while cursor is not None:
            page = self.store.scan(self.now, glob=glob, cursor=cursor, limit=limit)
            found += page.keys
            cursor = page.cursor
        assert found == sorted(k for k in self.model.live() if not glob or fnmatchcase(k, glob))

    @rule()
    def save_and_load(self) -> None:
        files = MemoryFiles()
        snapshot.save(files, Path("/s/saved"), self.store, self.now)
        loaded = StoreEngine()
        snapshot.load(files, Path("/s/saved"), loaded, self.now)
        assert loaded.scan(self.now, limit=1_000).keys == sorted(self.model.live())
        for key, value in self.model.live().items():
            if isinstance(value, bytes):
                assert loaded.get(key, self.now) == value

    @invariant()
    def books_are_right(self) -> None:
        if not hasattr(self, "store"):
            return
        keyspace = self.store.keyspace
        assert keyspace.used_bytes == self.model.used()
        assert not keyspace.max_bytes or keyspace.used_bytes <= keyspace.max_bytes
        for key, value in self.model.live().items():
            info = self.store.inspect(key, self.now)
            assert info is not None
            due = self.model.due(key)
            assert info.ttl_ms == (None if due == float("inf") else due - self.now)
            assert info.items == (1 if isinstance(value, bytes) else len(value))


StoreMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=60, deadline=None)
TestStore = StoreMachine.TestCase


@given(st.lists(st.tuples(st.booleans(), st.text(max_size=3)), max_size=400), st.text(max_size=2))
def test_the_key_index_is_an_ordered_set(changes: list[tuple[bool, str]], after: str) -> None:
    index, model = OrderedKeys(), set[str]()
    for add, key in changes:
        if add and key not in model:
            index.add(key)
            model.add(key)
        elif not add and key in model:
            index.remove(key)
            model.remove(key)
        if len(key) == 3:
            assert list(index.walk(after)) == sorted(k for k in model if k > after)
    assert list(index.walk("", after)) == sorted(k for k in model if k >= after and k)


@given(st.text(max_size=8), st.lists(st.text(min_size=1, max_size=6), max_size=20))
def test_a_glob_matches_as_in_the_shell(glob: str, keys: list[str]) -> None:
    store = StoreEngine()
    try:
        store.mset(dict.fromkeys(keys, b"\x00"), 0)
    except InvalidInput:
        return
    expected = sorted(key for key in set(keys) if not glob or fnmatchcase(key, glob))
    assert store.scan(0, glob=glob, limit=100).keys == expected
