"""Leases and rate limits of the store (SPEC O1)."""

from __future__ import annotations

import pytest

from nexo.brokers.store.engine import StoreEngine
from nexo.errors import InvalidInput, WrongType

NOW = 1_700_000_000_000


@pytest.fixture
def store() -> StoreEngine:
    return StoreEngine()


def take(
    store: StoreEngine, holder: str, now_ms: int = NOW, limit: int = 1, ttl_ms: int = 100
) -> int | None:
    return store.leases.take("k", holder, ttl_ms, limit, now_ms).number


class TestLeases:
    def test_a_lock_has_one_holder(self, store: StoreEngine) -> None:
        first = take(store, "a")
        assert first is not None
        refused = store.leases.take("k", "b", 100, 1, NOW + 30)
        assert (refused.number, refused.retry_ms) == (None, 70)
        assert store.leases.release("k", "a", NOW + 40)
        second = take(store, "b", NOW + 40)
        assert second is not None
        assert second > first
        assert not store.leases.release("k", "a", NOW + 50)

    def test_who_holds_it_keeps_its_number(self, store: StoreEngine) -> None:
        assert take(store, "a") == take(store, "a", NOW + 50)
        assert take(store, "b", NOW + 120) is None  # renewed at 50

    def test_an_expired_lease_is_free_and_cannot_be_renewed(self, store: StoreEngine) -> None:
        first = take(store, "a")
        assert not store.leases.renew("k", "a", 100, NOW + 100)
        second = take(store, "b", NOW + 100)
        assert first is not None
        assert second is not None
        assert second > first
        assert not store.leases.renew("k", "a", 100, NOW + 100)
        assert store.leases.renew("k", "b", 100, NOW + 150)

    def test_a_lease_that_ended_gets_a_new_number(self, store: StoreEngine) -> None:
        take(store, "b", limit=2, ttl_ms=1_000)  # keeps the key alive
        first = take(store, "a", limit=2)
        assert take(store, "a", NOW + 200, limit=2) != first

    def test_a_semaphore_has_as_many_holders_as_it_says(self, store: StoreEngine) -> None:
        assert all(take(store, f"{n}", NOW + n, limit=3) for n in range(3))
        refused = store.leases.take("k", "x", 100, 3, NOW + 10)
        assert (refused.number, refused.retry_ms) == (None, 90)  # the first of them ends first
        assert take(store, "x", NOW + 100, limit=3)
        assert store.maps.length("k", NOW + 100) == 3

    def test_numbers_grow_over_a_restart_without_a_snapshot(self) -> None:
        before = take(StoreEngine(), "a")
        after = take(StoreEngine(), "a", NOW + 1)
        assert before is not None
        assert after is not None
        assert after > before

    def test_a_key_goes_with_its_last_lease(self, store: StoreEngine) -> None:
        take(store, "a")
        info = store.inspect("k", NOW)
        assert info is not None
        assert (info.kind, info.ttl_ms) == ("map", 100)
        store.leases.release("k", "a", NOW)
        assert store.inspect("k", NOW) is None
        assert store.keyspace.used_bytes == 0

    def test_a_key_that_holds_something_else_is_refused(self, store: StoreEngine) -> None:
        store.set("k", b"\x01x", NOW)
        with pytest.raises(WrongType, match="not leases"):
            take(store, "a")
        store.delete(["k"], NOW)
        store.maps.set("k", {"a": b"\x01x"}, NOW)
        with pytest.raises(WrongType, match="does not hold leases"):
            take(store, "a")

    @pytest.mark.parametrize(
        ("holder", "ttl_ms", "limit"), [("", 1, 1), ("x" * 256, 1, 1), ("a", 0, 1), ("a", 1, 0)]
    )
    def test_bad_input_changes_nothing(
        self, store: StoreEngine, holder: str, ttl_ms: int, limit: int
    ) -> None:
        with pytest.raises(InvalidInput):
            store.leases.take("k", holder, ttl_ms, limit, NOW)
        assert len(store.keyspace) == 0


class TestTokenBucket:
    def test_a_burst_then_the_rate(self, store: StoreEngine) -> None:
        assert [store.rates.bucket("k", 3, 10, 1, NOW).allowed for _ in range(4)] == [
            True, True, True, False,
        ]  # fmt: skip
        refused = store.rates.bucket("k", 3, 10, 1, NOW + 50)
        assert (refused.remaining, refused.retry_ms) == (0.5, 50)
        assert store.rates.bucket("k", 3, 10, 1, NOW + 100).allowed

    def test_a_full_bucket_needs_no_key(self, store: StoreEngine) -> None:
        store.rates.bucket("k", 3, 10, 1, NOW)
        assert store.inspect("k", NOW + 99) is not None
        assert store.inspect("k", NOW + 100) is None

    @pytest.mark.parametrize(
        ("capacity", "rate", "cost"),
        [(0, 1, 1), (1, 0, 1), (1, 1, 2), (1, 1, 0), (1, float("nan"), 1), (1, 1e-300, 1)],
    )
    def test_bad_input_is_refused(
        self, store: StoreEngine, capacity: float, rate: float, cost: float
    ) -> None:
        with pytest.raises(InvalidInput):
            store.rates.bucket("k", capacity, rate, cost, NOW)


class TestSlidingWindow:
    def test_so_many_in_a_window(self, store: StoreEngine) -> None:
        assert [store.rates.window("k", 3, 6_400, 1, NOW + n).allowed for n in range(4)] == [
            True, True, True, False,
        ]  # fmt: skip
        refused = store.rates.window("k", 3, 6_400, 1, NOW + 10)
        again_ms = NOW + 10 + refused.retry_ms
        assert not store.rates.window("k", 3, 6_400, 1, again_ms - 1).allowed
        assert store.rates.window("k", 3, 6_400, 3, again_ms).remaining == 0

    def test_its_state_stays_small(self, store: StoreEngine) -> None:
        for now_ms in range(NOW, NOW + 100_000, 10):
            store.rates.window("k", 1_000_000, 10_000, 1, now_ms)
        info = store.inspect("k", now_ms)
        assert info is not None
        assert info.size_bytes < 2_000

    def test_a_collection_is_no_rate_limit(self, store: StoreEngine) -> None:
        store.sets.add("k", [b"\x01x"], NOW)
        with pytest.raises(WrongType, match="not a rate limit"):
            store.rates.window("k", 3, 100, 1, NOW)
