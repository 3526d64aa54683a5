"""Memory is reclaimed without a scan, bounded, and kept within its budget (SPEC B1, B3)."""

from __future__ import annotations

import pytest

from nexo.brokers.store.engine import StoreEngine
from nexo.brokers.store.expiry import SLOT_MS, Expiry
from nexo.brokers.store.index import OrderedKeys
from nexo.brokers.store.keyspace import ENTRY_BYTES
from nexo.errors import PayloadTooLarge

NOW = 1_000_000


def value(size: int) -> bytes:
    return b"\x00" * size


def entry_bytes(key: str, size: int) -> int:
    return ENTRY_BYTES + len(key) + size


class TestExpiry:
    def test_untouched_expired_keys_are_reclaimed_in_bounded_steps(self) -> None:
        store = StoreEngine()
        for n in range(1_000):
            store.set(f"k{n}", value(10), NOW, ttl_ms=1 + n % 50)
        later = NOW + 50 + SLOT_MS
        assert store.keyspace.sweep(later, 300) == 300
        assert len(store.keyspace) == 700
        while store.keyspace.sweep(later, 300):
            pass
        assert (len(store.keyspace), store.keyspace.used_bytes) == (0, 0)
        assert store.keyspace.expired == 1_000
        assert not store.keyspace.expiry

    def test_a_sweep_never_takes_a_live_key(self) -> None:
        store = StoreEngine()
        for n in range(500):
            store.set(f"k{n}", value(1), NOW, ttl_ms=1 + n)
        for now in range(NOW, NOW + 600, 7):
            store.keyspace.sweep(now, 1_000)
            alive = [n for n in range(500) if NOW + 1 + n > now]
            assert store.exists([f"k{n}" for n in alive], now) == len(alive)

    def test_rewriting_ttls_leaves_no_garbage(self) -> None:
        expiry = Expiry()
        for n in range(100_000):
            expiry.set(f"k{n % 10}", NOW + n * SLOT_MS)
        assert len(expiry._heap) <= 2 * 10 + 64
        assert len(expiry._slots) <= 10
        for n in range(10):
            expiry.clear(f"k{n}")
        assert expiry.pop_over(NOW + 10**12, 1000) == []
        assert not expiry

    def test_the_next_slot_is_known_without_a_search(self) -> None:
        expiry = Expiry()
        expiry.set("late", NOW + 10_000)
        expiry.set("soon", NOW + 10)
        assert NOW + 10 < expiry.next_ms() <= NOW + 10 + SLOT_MS


class TestBudget:
    def test_the_least_recently_used_key_goes_first(self) -> None:
        store = StoreEngine(max_bytes=3 * entry_bytes("a", 10))
        for key in "abc":
            store.put(key, value(10))
        store.get("a", NOW)
        store.put("d", value(10))
        assert [store.get(key, NOW) is not None for key in "abcd"] == [True, False, True, True]
        assert store.keyspace.evicted == 1

    def test_the_budget_holds_however_keys_grow(self) -> None:
        store = StoreEngine(max_bytes=5_000)
        for n in range(300):
            store.put(f"k{n % 40}", value(n % 90 + 1))
            store.lists.push("l", [value(3)], NOW)
            store.lists.trim("l", -10, None, NOW)
            store.maps.set("m", {str(n % 7): value(n % 50 + 1)}, NOW)
            assert store.keyspace.used_bytes <= 5_000
        assert store.lists.length("l", NOW) == 10
        assert store.keyspace.evicted > 0

    def test_looking_at_a_key_is_not_a_use(self) -> None:
        store = StoreEngine(max_bytes=2 * entry_bytes("a", 10))
        store.put("a", value(10))
        store.put("b", value(10))
        store.exists(["a"], NOW)
        store.inspect("a", NOW)
        store.scan(NOW)
        store.put("c", value(10))
        assert store.exists(["a"], NOW) == 0

    def test_what_can_never_fit_is_refused_and_evicts_nothing(self) -> None:
        store = StoreEngine(max_bytes=2_000)
        store.put("a", value(10))
        with pytest.raises(PayloadTooLarge, match="budget"):
            store.put("b", value(2_000))
        with pytest.raises(PayloadTooLarge):
            store.put("a", value(2_000))
        with pytest.raises(PayloadTooLarge):
            store.mset({"c": value(1), "d": value(2_000)}, NOW)
        with pytest.raises(PayloadTooLarge):
            store.lists.push("l", [value(100)] * 20, NOW)
        with pytest.raises(PayloadTooLarge):
            store.maps.set("m", {"f": value(2_000)}, NOW)
        with pytest.raises(PayloadTooLarge):
            store.sets.add("s", [value(2_000)], NOW)
        assert store.scan(NOW).keys == ["a"]
        assert store.get("a", NOW) == value(10)
        assert store.keyspace.evicted == 0

    def test_without_a_budget_nothing_is_evicted(self) -> None:
        store = StoreEngine()
        for n in range(10_000):
            store.put(str(n), value(100))
        assert (len(store.keyspace), store.keyspace.evicted) == (10_000, 0)


class TestKeyIndex:
    def test_order_holds_across_blocks_and_pending_changes(self) -> None:
        index = OrderedKeys()
        keys = {f"{n * 7919 % 20_011:05}" for n in range(20_000)}
        for key in keys:
            index.add(key)
        gone = {key for key in keys if key[-1] in "37"}
        for key in gone:
            index.remove(key)
        assert list(index.walk("")) == sorted(keys - gone)
        for key in gone:
            index.add(key)
        assert list(index.walk("10000")) == sorted(key for key in keys if key > "10000")
        assert next(index.walk("", "10000")) == min(key for key in keys if key >= "10000")
        for key in keys:
            index.remove(key)
        assert list(index.walk("")) == []

    def test_a_key_below_all_others_finds_its_place(self) -> None:
        index = OrderedKeys()
        for key in ("m", "z", "a"):
            index.add(key)
            assert key in list(index.walk(""))
        assert list(index.walk("")) == ["a", "m", "z"]
